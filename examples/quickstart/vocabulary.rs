//! The tokens: one for each byte that occurs in the text.

/// A token, as an index into the vocabulary.
pub(crate) type Token = u8;

/// The bytes of a text, numbered in their order.
#[derive(Debug, Clone)]
pub(crate) struct Vocabulary {
    bytes: Vec<u8>,
}

impl Vocabulary {
    pub(crate) fn of(text: &[u8]) -> Self {
        let mut seen = [false; 256];
        for &byte in text {
            seen[usize::from(byte)] = true;
        }
        Self { bytes: (0..=255).filter(|&byte| seen[usize::from(byte)]).collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The tokens of a text; bytes that are in no token are left out.
    pub(crate) fn encode(&self, text: &[u8]) -> Vec<Token> {
        let mut token_of = [None; 256];
        for (token, &byte) in (0..=255).zip(&self.bytes) {
            token_of[usize::from(byte)] = Some(token);
        }
        text.iter().filter_map(|&byte| token_of[usize::from(byte)]).collect()
    }

    /// The text of some tokens; a character of several bytes may have been cut.
    pub(crate) fn decode(&self, tokens: &[Token]) -> String {
        let bytes: Vec<u8> = tokens.iter().filter_map(|&token| self.bytes.get(usize::from(token)).copied()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
