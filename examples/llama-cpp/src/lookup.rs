//! Prompt lookup: what followed the same few tokens before is proposed again. It costs next to nothing, and pays where
//! a text repeats itself: code, quotations, edits.

use crate::model::Token;

/// What followed the last occurrence of the longest possible run, of `max_ngram` tokens at most, that ends the text.
pub(crate) fn look_up(text: &[Token], max_ngram: usize, len: usize) -> &[Token] {
    for ngram in (1..=max_ngram.min(text.len())).rev() {
        let run = &text[text.len() - ngram..];
        // The run at the end itself is no earlier occurrence.
        let earlier = &text[..text.len() - 1];
        if let Some(start) = earlier.windows(ngram).rposition(|window| window == run) {
            let follows = &text[start + ngram..];
            return &follows[..follows.len().min(len)];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(text: &[i32], max_ngram: usize, len: usize) -> Vec<i32> {
        let text: Vec<Token> = text.iter().copied().map(Token).collect();
        look_up(&text, max_ngram, len).iter().map(|token| token.0).collect()
    }

    #[test]
    fn the_longest_run_decides_and_of_equal_runs_the_last() {
        assert_eq!(proposed(&[1, 2, 3, 9, 3, 4, 1, 2, 3], 3, 2), [9, 3]);
        assert_eq!(proposed(&[1, 2, 3, 9, 3, 4, 1, 2, 3], 1, 2), [4, 1]);
        assert_eq!(proposed(&[5, 6, 5, 7, 5], 3, 1), [7]);
    }

    #[test]
    fn no_more_is_proposed_than_was_asked_for_or_is_there() {
        assert_eq!(proposed(&[1, 2, 3, 1], 3, 9), [2, 3, 1]);
        assert_eq!(proposed(&[1, 2, 3, 1], 3, 0), []);
        assert_eq!(proposed(&[1, 1], 3, 4), [1]);
    }

    #[test]
    fn nothing_is_proposed_for_what_was_never_seen() {
        assert_eq!(proposed(&[1, 2, 3], 3, 4), []);
        assert_eq!(proposed(&[1], 3, 4), []);
        assert_eq!(proposed(&[], 3, 4), []);
    }
}
