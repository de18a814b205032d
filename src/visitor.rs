//! Reads a span's fields as tracing shows them, and hands what they mean to a [`Reader`].

use std::fmt::{Debug, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrayvec::ArrayString;
use tracing::field::{Field, Visit};

use crate::callsites::{FieldCodes, code};
use crate::step::Count;

/// The longest name of an engine, in bytes.
pub(crate) const MAX_ENGINE_NAME: usize = 64;

/// Whoever reads a span's fields: at its creation, or at a later record.
pub(crate) trait Reader {
    /// The number with this index.
    fn number(&mut self, index: usize, value: u32);

    /// The number with this index was given as something that is none.
    fn refuse_number(&mut self, index: usize);

    /// The engine's name, or `None` for a value that can't be one.
    fn engine(&mut self, name: Option<&str>);

    /// Whether the name is wanted: formatting it may cost.
    fn wants_engine(&self) -> bool;

    /// The rank, or `None` for a value that can't be one.
    fn rank(&mut self, rank: Option<u32>);
}

/// Visits the fields of one span.
#[derive(Debug)]
pub(crate) struct StepVisitor<'a, R> {
    pub(crate) codes: &'a FieldCodes,
    pub(crate) reader: R,
}

impl<R: Reader> StepVisitor<'_, R> {
    #[inline]
    fn number(&mut self, field: &Field, value: u64) {
        let code = self.codes.get(field.index());
        match u32::try_from(value) {
            Ok(value) if usize::from(code) < Count::COUNT => self.reader.number(code.into(), value),
            narrow => self.identity(code, value, narrow.ok()),
        }
    }

    /// A number that is no count, or too wide for one.
    #[cold]
    fn identity(&mut self, code: u8, value: u64, narrow: Option<u32>) {
        match code {
            code::OTHER => {}
            code::ENGINE => self.reader.engine(Some(itoa::Buffer::new().format(value))),
            code::RANK => self.reader.rank(narrow),
            code => self.reader.refuse_number(code.into()),
        }
    }

    #[cold]
    fn refuse(&mut self, field: &Field) {
        match self.codes.get(field.index()) {
            code::OTHER => {}
            code::ENGINE => self.reader.engine(None),
            code::RANK => self.reader.rank(None),
            code => self.reader.refuse_number(code.into()),
        }
    }
}

impl<R: Reader> Visit for StepVisitor<'_, R> {
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
            self.reader.engine(is_engine_name(value).then_some(value));
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
        if !self.reader.wants_engine() {
            return self.reader.engine(None);
        }
        let mut text = ArrayString::<{ MAX_ENGINE_NAME + 2 }>::new();
        // The value's own `Debug`: it may panic, and it may raise events or open spans of its own. Nothing of ours is
        // held here.
        let written = catch_unwind(AssertUnwindSafe(|| write!(text, "{value:?}")));
        let name = unquoted(&text);
        self.reader.engine((matches!(written, Ok(Ok(()))) && is_engine_name(name)).then_some(name));
    }
}

#[inline]
pub(crate) fn is_engine_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_ENGINE_NAME
}

/// `?name` writes a string with its quotes; it names the same engine as `name`, unless `Debug` escapes some of it.
fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}
