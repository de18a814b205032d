//! What is known of an engine besides its name: fixed, and of low cardinality.

/// Attributes that every point of an engine carries, besides `spec_decode.engine`.
///
/// They are fixed when the engine is described. Each distinct value is a time series of its own in most backends: keep
/// request ids, prompts and anything else that varies out of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineAttributes {
    pairs: Vec<(&'static str, String)>,
    /// Those that `spec_decode.info` alone carries.
    info: Vec<(&'static str, String)>,
}

impl EngineAttributes {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The target model, as `spec_decode.model`.
    #[must_use]
    pub fn with_model(self, model: impl Into<String>) -> Self {
        self.with("spec_decode.model", model.into())
    }

    /// How drafts are made (`ngram`, `eagle`, `medusa`, `draft_model`, ...), as `spec_decode.method`.
    #[must_use]
    pub fn with_method(self, method: impl Into<String>) -> Self {
        self.with("spec_decode.method", method.into())
    }

    /// The model that drafts, as `spec_decode.draft_model`.
    #[must_use]
    pub fn with_draft_model(self, draft_model: impl Into<String>) -> Self {
        self.with("spec_decode.draft_model", draft_model.into())
    }

    /// The revision of the model that drafts, as `spec_decode.draft_model_revision` of `spec_decode.info` alone, so that
    /// a new one is no new series of every metric.
    #[must_use]
    pub fn with_draft_model_revision(self, revision: impl Into<String>) -> Self {
        Self { info: set(self.info, "spec_decode.draft_model_revision", revision.into()), ..self }
    }

    /// The k that the engine is configured with, as `spec_decode.num_spec_tokens` of `spec_decode.info` alone.
    #[must_use]
    pub fn with_num_spec_tokens(self, num_spec_tokens: u32) -> Self {
        Self { info: set(self.info, "spec_decode.num_spec_tokens", num_spec_tokens.to_string()), ..self }
    }

    /// All that every point carries, as name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.pairs.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// What `spec_decode.info` carries besides.
    pub fn info(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.info.iter().map(|(name, value)| (*name, value.as_str()))
    }

    fn with(self, name: &'static str, value: String) -> Self {
        Self { pairs: set(self.pairs, name, value), ..self }
    }
}

fn set(mut pairs: Vec<(&'static str, String)>, name: &'static str, value: String) -> Vec<(&'static str, String)> {
    pairs.retain(|(existing, _)| *existing != name);
    pairs.push((name, value));
    pairs
}
