//! How far ahead is drafted.

/// k: fixed, or following what is accepted.
#[derive(Debug, Clone, Copy)]
pub struct Lookahead {
    k: usize,
    max: usize,
    is_dynamic: bool,
}

impl Lookahead {
    #[must_use]
    pub fn fixed(k: usize) -> Self {
        Self { k, max: k, is_dynamic: false }
    }

    /// From `k`, between 1 and `max`.
    #[must_use]
    pub fn dynamic(k: usize, max: usize) -> Self {
        Self { k: k.clamp(1, max.max(1)), max: max.max(1), is_dynamic: true }
    }

    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// A step in which everything was accepted was too short; one in which less than half was, too long.
    pub(crate) fn learn(&mut self, drafted: usize, accepted: usize) {
        if !self.is_dynamic || drafted == 0 {
            return;
        }
        if accepted == drafted {
            self.k = (self.k + 1).min(self.max);
        } else if accepted * 2 < drafted {
            self.k = (self.k - 1).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(mut lookahead: Lookahead, steps: &[(usize, usize)]) -> usize {
        steps.iter().for_each(|&(drafted, accepted)| lookahead.learn(drafted, accepted));
        lookahead.k()
    }

    #[test]
    fn a_dynamic_k_follows_acceptance_within_its_bounds() {
        let lookahead = Lookahead::dynamic(4, 6);
        assert_eq!(after(lookahead, &[(4, 4)]), 5);
        assert_eq!(after(lookahead, &[(4, 4), (5, 5), (6, 6), (6, 6)]), 6);
        assert_eq!(after(lookahead, &[(4, 1)]), 3);
        assert_eq!(after(lookahead, &[(4, 0); 9]), 1);
        assert_eq!(after(lookahead, &[(4, 2)]), 4);
        assert_eq!(after(lookahead, &[(0, 0)]), 4, "a step without drafts teaches nothing");
    }

    #[test]
    fn a_fixed_k_stays() {
        assert_eq!(after(Lookahead::fixed(4), &[(4, 4), (4, 0), (4, 0)]), 4);
    }
}
