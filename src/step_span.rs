//! The macro that makes a step's span with all its fields declared.

/// Makes a `spec_decode_step` span at INFO, with the caller's target and every field of the contract declared, so that
/// a later `Span::record` is not lost.
///
/// ```
/// use tracing_spec_decode::step_span;
///
/// let span = step_span!(num_spec_tokens = 5, num_drafts = 4);
/// let step = span.enter();
/// // ... draft, verify, sample ...
/// span.record("num_accepted_tokens", 13);
/// span.record("num_emitted_tokens", 17);
/// drop(step);
/// ```
///
/// The fields are `num_spec_tokens`, `num_drafts`, `num_draft_tokens`, `num_accepted_tokens`, `num_emitted_tokens`,
/// `num_discarded_draft_tokens`, `num_sequences`, `num_tokens`, `engine` and `rank`; another name does not compile. As
/// in `tracing`'s own macros a value may be written by its `Display` (`engine = %name`) or `Debug` (`engine = ?name`),
/// a variable of a field's name needs no value (`step_span!(num_drafts)`), and a parent may come first
/// (`step_span!(parent: &request, num_drafts = 4)`, `parent: None`).
///
/// A guard that is kept while the next one is made (`self.guard = Some(span.entered())`) makes each step the child of
/// the last, and none ever closes: drop the old guard first.
#[macro_export]
macro_rules! step_span {
    (parent: $parent:expr $(, $($fields:tt)*)?) => {
        $crate::__step_span!(@read [parent: $parent,] [] $($($fields)*)?)
    };
    ($($fields:tt)*) => { $crate::__step_span!(@read [] [] $($fields)*) };
}

/// Reads the fields one by one into `name = value` pairs, then makes the span of them.
#[doc(hidden)]
#[macro_export]
macro_rules! __step_span {
    (@read $parent:tt [$($read:tt)*] $field:ident = %$value:expr $(, $($rest:tt)*)?) => {
        $crate::__step_span!(
            @read $parent [$($read)* , $field = $crate::__private::display(&$value)] $($($rest)*)?
        )
    };
    (@read $parent:tt [$($read:tt)*] $field:ident = ?$value:expr $(, $($rest:tt)*)?) => {
        $crate::__step_span!(
            @read $parent [$($read)* , $field = $crate::__private::debug(&$value)] $($($rest)*)?
        )
    };
    (@read $parent:tt [$($read:tt)*] $field:ident = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__step_span!(@read $parent [$($read)* , $field = $value] $($($rest)*)?)
    };
    (@read $parent:tt [$($read:tt)*] $field:ident $(, $($rest:tt)*)?) => {
        $crate::__step_span!(@read $parent [$($read)* , $field = $field] $($($rest)*)?)
    };
    (@read [$($parent:tt)*] [$(, $field:ident = $value:expr)*]) => {{
        $($crate::__step_field!(@known $field);)*
        $crate::__private::info_span!(
            $($parent)*
            "spec_decode_step",
            num_spec_tokens = $crate::__step_field!(num_spec_tokens $(, $field = $value)*),
            num_drafts = $crate::__step_field!(num_drafts $(, $field = $value)*),
            num_draft_tokens = $crate::__step_field!(num_draft_tokens $(, $field = $value)*),
            num_accepted_tokens = $crate::__step_field!(num_accepted_tokens $(, $field = $value)*),
            num_emitted_tokens = $crate::__step_field!(num_emitted_tokens $(, $field = $value)*),
            num_discarded_draft_tokens = $crate::__step_field!(num_discarded_draft_tokens $(, $field = $value)*),
            num_sequences = $crate::__step_field!(num_sequences $(, $field = $value)*),
            num_tokens = $crate::__step_field!(num_tokens $(, $field = $value)*),
            engine = $crate::__step_field!(engine $(, $field = $value)*),
            rank = $crate::__step_field!(rank $(, $field = $value)*),
        )
    }};
}

/// The value of one field among those given, or `Empty`.
#[doc(hidden)]
#[macro_export]
macro_rules! __step_field {
    (@known num_spec_tokens) => {};
    (@known num_drafts) => {};
    (@known num_draft_tokens) => {};
    (@known num_accepted_tokens) => {};
    (@known num_emitted_tokens) => {};
    (@known num_discarded_draft_tokens) => {};
    (@known num_sequences) => {};
    (@known num_tokens) => {};
    (@known engine) => {};
    (@known rank) => {};
    (@known $other:ident) => {
        ::core::compile_error!(::core::concat!("`", ::core::stringify!($other), "` is no field of a step"))
    };
    (num_spec_tokens, num_spec_tokens = $value:expr $(, $($rest:tt)*)?) => { $value };
    (num_drafts, num_drafts = $value:expr $(, $($rest:tt)*)?) => { $value };
    (num_draft_tokens, num_draft_tokens = $value:expr $(, $($rest:tt)*)?) => { $value };
    (num_accepted_tokens, num_accepted_tokens = $value:expr $(, $($rest:tt)*)?) => { $value };
    (num_emitted_tokens, num_emitted_tokens = $value:expr $(, $($rest:tt)*)?) => { $value };
    (num_discarded_draft_tokens, num_discarded_draft_tokens = $value:expr $(, $($rest:tt)*)?) => { $value };
    (num_sequences, num_sequences = $value:expr $(, $($rest:tt)*)?) => { $value };
    (num_tokens, num_tokens = $value:expr $(, $($rest:tt)*)?) => { $value };
    (engine, engine = $value:expr $(, $($rest:tt)*)?) => { $value };
    (rank, rank = $value:expr $(, $($rest:tt)*)?) => { $value };
    ($wanted:ident) => { $crate::__private::Empty };
    ($wanted:ident, $other:ident = $value:expr $(, $($rest:tt)*)?) => {
        $crate::__step_field!($wanted $(, $($rest)*)?)
    };
}
