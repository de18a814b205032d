//! Reads a span's fields as tracing shows them: numbers into [`Fields`], the engine's name to whoever looks it up.

use std::fmt::{self, Debug, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrayvec::ArrayString;
use tracing::field::{Field, Visit};

use crate::callsites::{FieldCodes, code};
use crate::step::{Count, Fields};

/// The longest name of an engine, in bytes.
pub(crate) const MAX_ENGINE_NAME: usize = 64;

/// What becomes of the fields `engine` and `rank`.
pub(crate) trait Identity {
    /// The engine's name, or `None` for a value that can't be one.
    fn engine(&mut self, name: Option<&str>);

    /// Whether the name is wanted: formatting it may cost.
    fn wants_engine(&self) -> bool;

    fn rank(&mut self, rank: u32);
}

/// Visits the fields of one span, at its creation or at a later record.
pub(crate) struct StepVisitor<I> {
    codes: FieldCodes,
    pub(crate) fields: Fields,
    /// The numbers that were refused, as bits.
    pub(crate) refused: u32,
    /// How many values were refused.
    pub(crate) invalid: u32,
    pub(crate) identity: I,
}

impl<I: Identity> StepVisitor<I> {
    #[inline]
    pub(crate) fn new(codes: FieldCodes, identity: I) -> Self {
        Self { codes, fields: Fields::default(), refused: 0, invalid: 0, identity }
    }

    #[inline]
    fn number(&mut self, field: &Field, value: u64) {
        match self.codes.get(field.index()) {
            code::OTHER => {}
            code::ENGINE => self.engine_number(value),
            code::RANK => match u32::try_from(value) {
                Ok(rank) => self.identity.rank(rank),
                Err(_) => self.refuse_identity(),
            },
            code => {
                let index = usize::from(code.wrapping_sub(1));
                match u32::try_from(value) {
                    Ok(value) => {
                        self.fields.set(index, value);
                        self.refused &= !(1_u32.wrapping_shl(index as u32));
                    }
                    Err(_) => self.refuse_number(index),
                }
            }
        }
    }

    #[cold]
    fn engine_number(&mut self, value: u64) {
        self.identity.engine(Some(itoa::Buffer::new().format(value)));
    }

    #[cold]
    fn refuse(&mut self, field: &Field) {
        match self.codes.get(field.index()) {
            code::OTHER => {}
            code::ENGINE => self.identity.engine(None),
            code::RANK => self.refuse_identity(),
            code => self.refuse_number(usize::from(code.wrapping_sub(1))),
        }
    }

    #[cold]
    fn refuse_number(&mut self, index: usize) {
        self.fields.clear(index);
        self.refused |= 1_u32.wrapping_shl(index as u32);
        self.invalid = self.invalid.saturating_add(1);
    }

    #[cold]
    fn refuse_identity(&mut self) {
        self.invalid = self.invalid.saturating_add(1);
    }
}

impl<I: Identity> Visit for StepVisitor<I> {
    #[inline]
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.number(field, value);
    }

    #[inline]
    fn record_i64(&mut self, field: &Field, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.number(field, value),
            Err(_) => self.refuse(field),
        }
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        match u64::try_from(value) {
            Ok(value) => self.number(field, value),
            Err(_) => self.refuse(field),
        }
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        match u64::try_from(value) {
            Ok(value) => self.number(field, value),
            Err(_) => self.refuse(field),
        }
    }

    #[inline]
    fn record_str(&mut self, field: &Field, value: &str) {
        if self.codes.get(field.index()) == code::ENGINE {
            self.identity.engine(is_engine_name(value).then_some(value));
        } else {
            self.refuse(field);
        }
    }

    fn record_f64(&mut self, field: &Field, _value: f64) {
        self.refuse(field);
    }

    fn record_bool(&mut self, field: &Field, _value: bool) {
        self.refuse(field);
    }

    fn record_bytes(&mut self, field: &Field, _value: &[u8]) {
        self.refuse(field);
    }

    fn record_error(&mut self, field: &Field, _value: &(dyn std::error::Error + 'static)) {
        self.refuse(field);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if self.codes.get(field.index()) != code::ENGINE {
            return self.refuse(field);
        }
        if !self.identity.wants_engine() {
            return self.identity.engine(None);
        }
        let mut text = ArrayString::<{ MAX_ENGINE_NAME + 2 }>::new();
        // The engine's own `Debug`: it may panic, and it may raise events or open spans of its own. Nothing of ours is
        // held here.
        let written = catch_unwind(AssertUnwindSafe(|| write!(text, "{value:?}")));
        let name = unquoted(&text);
        self.identity.engine((matches!(written, Ok(Ok(()))) && is_engine_name(name)).then_some(name));
    }
}

impl<I> fmt::Debug for StepVisitor<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepVisitor").field("fields", &self.fields).finish_non_exhaustive()
    }
}

pub(crate) fn is_engine_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_ENGINE_NAME
}

/// `?name` writes a string with its quotes; it names the same engine as `name`.
fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

/// The identity of a span that has been made already: what comes now is too late.
#[derive(Debug, Default)]
pub(crate) struct Late {
    pub(crate) count: u32,
}

impl Identity for Late {
    fn engine(&mut self, _name: Option<&str>) {
        self.count = self.count.saturating_add(1);
    }

    fn wants_engine(&self) -> bool {
        false
    }

    fn rank(&mut self, _rank: u32) {
        self.count = self.count.saturating_add(1);
    }
}

const _: () = assert!(Count::COUNT < code::ENGINE as usize);
