//! The four quantities that everything is made of, and sums of them.

/// What a step, a sample or a window has an amount of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    Drafts,
    DraftTokens,
    Accepted,
    Emitted,
}

impl Quantity {
    pub(crate) const COUNT: usize = 4;
    pub(crate) const ALL: [Self; Self::COUNT] = [Self::Drafts, Self::DraftTokens, Self::Accepted, Self::Emitted];
}

/// A set of quantities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quantities(u8);

impl Quantities {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const ALL: Self = Self(0b1111);

    #[inline]
    pub(crate) const fn of(quantity: Quantity) -> Self {
        Self(1 << quantity as u8)
    }

    #[inline]
    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline]
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    #[inline]
    pub(crate) const fn has(self, quantity: Quantity) -> bool {
        self.0 & Self::of(quantity).0 != 0
    }

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }
}

/// An amount of each quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts([u64; Quantity::COUNT]);

impl Amounts {
    #[inline]
    pub(crate) const fn new(drafts: u64, draft_tokens: u64, accepted: u64, emitted: u64) -> Self {
        Self([drafts, draft_tokens, accepted, emitted])
    }

    pub(crate) fn from_fn(amount: impl FnMut(Quantity) -> u64) -> Self {
        Self(Quantity::ALL.map(amount))
    }

    #[inline]
    pub(crate) const fn get(&self, quantity: Quantity) -> u64 {
        self.0[quantity as usize]
    }

    #[inline]
    pub(crate) fn add(&mut self, other: &Self) {
        for (amount, other) in self.0.iter_mut().zip(other.0) {
            *amount = amount.saturating_add(other);
        }
    }

    #[inline]
    pub(crate) fn minus(&self, other: &Self) -> Self {
        Self::from_fn(|quantity| self.get(quantity).saturating_sub(other.get(quantity)))
    }

    pub(crate) fn differing(&self, other: &Self) -> Quantities {
        let differing = Quantity::ALL.into_iter().filter(|&quantity| self.get(quantity) != other.get(quantity));
        differing.fold(Quantities::NONE, |all, quantity| all.with(Quantities::of(quantity)))
    }

    /// What the accepted and emitted tokens may be at most, given the drafts.
    #[inline]
    pub(crate) const fn max_emitted(&self) -> u64 {
        self.get(Quantity::DraftTokens).saturating_add(self.get(Quantity::Drafts))
    }
}
