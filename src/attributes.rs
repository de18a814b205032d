//! What is known of an engine besides its name: fixed, and of low cardinality.

/// Attributes that every point of an engine carries, besides `spec_decode.engine`.
///
/// They are fixed when the engine is described. Each distinct value is a time series of its own in most backends: keep
/// request ids, prompts and anything else that varies out of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineAttributes {
    pairs: Vec<(&'static str, String)>,
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

    /// All of them, as name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.pairs.iter().map(|(name, value)| (*name, value.as_str()))
    }

    fn with(mut self, name: &'static str, value: String) -> Self {
        self.pairs.retain(|(existing, _)| *existing != name);
        self.pairs.push((name, value));
        self
    }
}
