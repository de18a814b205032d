//! A model file: loaded, with what the loop needs of its vocabulary.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, bail};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
pub use llama_cpp_2::token::LlamaToken as Token;
use llama_cpp_2::{LogOptions, send_logs_to_tracing};

/// A GGUF file in memory.
#[derive(Debug)]
pub struct Model {
    /// The file's name without its folder and ending.
    pub name: String,
    pub(crate) llama: LlamaModel,
}

impl Model {
    /// # Errors
    ///
    /// There is no such file, it is no GGUF, or llama.cpp can't load or roll it back.
    pub fn load(path: &Path) -> Result<Self> {
        // llama.cpp says only in its log what it has against a file.
        is_gguf(path)
            .with_context(|| format!("cannot read {path:?}"))?
            .then_some(())
            .ok_or_else(|| anyhow!("{path:?} is not a GGUF file"))?;
        let llama = LlamaModel::load_from_file(backend()?, path, &LlamaModelParams::default())
            .map_err(|_| anyhow!("llama.cpp cannot load {path:?}: it is cut short or of an unknown architecture"))?;
        if llama.is_recurrent() || llama.is_hybrid() {
            bail!("{path:?} keeps a recurrent state, from which rejected tokens cannot be taken back");
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, llama })
    }

    #[must_use]
    pub fn tokenize(&self, text: &str) -> Vec<Token> {
        self.llama.vocab().tokenize(text.as_bytes(), true, true)
    }

    /// The bytes of a token; a character may be cut. Control tokens have none.
    #[must_use]
    pub fn bytes_of(&self, token: Token) -> Vec<u8> {
        self.llama.vocab().token_to_piece(token, false, None)
    }

    /// Whether a text ends with this token.
    #[must_use]
    pub fn is_end(&self, token: Token) -> bool {
        self.llama.vocab().is_eog(token)
    }

    #[must_use]
    pub fn vocabulary_len(&self) -> usize {
        self.llama.n_vocab().try_into().unwrap_or_default()
    }

    /// The longest context that the model was trained for.
    #[must_use]
    pub fn max_context(&self) -> usize {
        self.llama.n_ctx_train() as usize
    }

    /// Whether a token means the same in both, so that one model can draft for the other.
    #[must_use]
    pub fn shares_vocabulary_with(&self, other: &Self) -> bool {
        let (one, other) = (self.llama.vocab(), other.llama.vocab());
        one.n_tokens() == other.n_tokens() && one.tokens().all(|token| one.text(token) == other.text(token))
    }
}

fn is_gguf(path: &Path) -> std::io::Result<bool> {
    let mut magic = Vec::new();
    File::open(path)?.take(4).read_to_end(&mut magic)?;
    Ok(magic == b"GGUF")
}

/// llama.cpp, started once a process and without its log.
pub(crate) fn backend() -> Result<&'static LlamaBackend> {
    static BACKEND: OnceLock<Option<LlamaBackend>> = OnceLock::new();
    let backend = BACKEND.get_or_init(|| {
        send_logs_to_tracing(LogOptions::default().with_logs_enabled(false));
        LlamaBackend::init().ok()
    });
    backend.as_ref().context("llama.cpp does not start")
}
