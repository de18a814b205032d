//! From tokens to characters.

use spec_decode_llama::model::{Model, Token};

/// Turns tokens into text as they come, and keeps what is of a character that a token has cut.
#[derive(Debug, Default)]
pub(crate) struct TextStream {
    read: usize,
    cut: Vec<u8>,
}

impl TextStream {
    /// The text of those of `tokens` that were not there the last time.
    pub(crate) fn next(&mut self, model: &Model, tokens: &[Token]) -> String {
        let mut bytes = std::mem::take(&mut self.cut);
        bytes.extend(tokens.iter().skip(self.read).flat_map(|&token| model.bytes_of(token)));
        self.read = tokens.len();
        let mut text = String::new();
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            if chunks.peek().is_none() && is_cut(chunk.invalid()) {
                self.cut = chunk.invalid().to_vec();
            } else if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        text
    }
}

/// Whether more bytes could make a character of these.
fn is_cut(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// All of it at once.
pub(crate) fn text_of(model: &Model, tokens: &[Token]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| model.bytes_of(token)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
