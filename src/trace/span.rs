//! Making the collect spans, on a thread of its own: samplers, processors and exporters are other people's code, and
//! an engine's thread waits for none of it.

use std::borrow::Cow;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime};
use std::{io, thread};

use opentelemetry::trace::{Span, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};

use super::Ended;
use crate::engine::Engine;
use crate::metrics::SpecDecodeMetrics;
use crate::outcome::{Outcome, Reason};
use crate::published::word;
use crate::quantity::Quantity;

/// Makes one span.
pub(crate) type MakeSpan = Box<dyn FnMut(Collected) + Send>;

/// A collection that has ended, with all that its span will say.
#[derive(Debug)]
pub(crate) struct Collected {
    parent: SpanContext,
    /// The step in which it ended, if that is traced.
    pub(super) link: Option<SpanContext>,
    start: SystemTime,
    end: SystemTime,
    status: Status,
    attributes: Vec<KeyValue>,
}

impl Collected {
    pub(super) fn new(engine: &Engine, parent: SpanContext, start: SystemTime, ended: &Ended) -> Self {
        let status = match ended.outcome {
            Outcome::Resolved | Outcome::Skipped => Status::Unset,
            Outcome::Failed | Outcome::Lost => Status::error(ended.reason.name().unwrap_or(ended.outcome.name())),
        };
        let mut attributes = vec![
            KeyValue::new("spec_decode.engine", engine.name.to_string()),
            KeyValue::new("spec_decode.collection.outcome", ended.outcome.name()),
        ];
        attributes.extend(engine.attributes.iter().map(|(name, value)| KeyValue::new(name, value.to_owned())));
        attributes.extend(ended.reason.name().map(|reason| KeyValue::new("error.type", reason)));
        if (ended.outcome, ended.reason) == (Outcome::Resolved, Reason::None) {
            add_amounts(&mut attributes, engine, ended);
        }
        Self { parent, link: None, start, end: SystemTime::now(), status, attributes }
    }
}

/// What the sample added to the counters and, where its quantities belong together, what they come to.
fn add_amounts(attributes: &mut Vec<KeyValue>, engine: &Engine, ended: &Ended) {
    let given = engine.published.get(word::GAVE);
    let amount = |quantity: Quantity| {
        let known = given & 1 << quantity as u64 != 0;
        known.then(|| ended.amounts.get(quantity))
    };
    let sample = SpecDecodeMetrics {
        drafts: amount(Quantity::Drafts),
        draft_tokens: amount(Quantity::DraftTokens),
        accepted_tokens: amount(Quantity::Accepted),
        emitted_tokens: amount(Quantity::Emitted),
        ..SpecDecodeMetrics::default()
    };
    let k = Some(engine.published.get(word::NUM_SPEC_TOKENS)).filter(|&k| k > 0);
    for (name, count) in [
        ("spec_decode.drafts", sample.drafts),
        ("spec_decode.draft_tokens", sample.draft_tokens),
        ("spec_decode.accepted_tokens", sample.accepted_tokens),
        ("spec_decode.emitted_tokens", sample.emitted_tokens),
        ("spec_decode.num_spec_tokens", k),
    ] {
        attributes.extend(count.map(|count| KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX))));
    }
    for (name, rate) in [
        ("spec_decode.draft_acceptance_rate", sample.draft_acceptance_rate()),
        ("spec_decode.system_efficiency", sample.system_efficiency()),
        ("spec_decode.mean_acceptance_length", sample.mean_acceptance_length()),
    ] {
        if ended.has_rates && rate.is_finite() {
            attributes.push(KeyValue::new(name, rate));
        }
    }
}

/// Makes spans with a tracer.
pub(crate) fn span_maker<T>(tracer: T) -> MakeSpan
where
    T: Tracer + Send + 'static,
{
    Box::new(move |collected| {
        let parent = Context::new().with_remote_span_context(collected.parent);
        let builder = SpanBuilder::from_name(Cow::Borrowed("spec_decode.collect"))
            .with_kind(SpanKind::Internal)
            .with_start_time(collected.start)
            .with_attributes(collected.attributes)
            .with_links(collected.link.into_iter().map(opentelemetry::trace::Link::with_context).collect());
        let mut span = builder.start_with_context(&tracer, &parent);
        span.set_status(collected.status);
        span.end_with_timestamp(collected.end);
    })
}

enum Letter {
    Collected(Box<Collected>),
    Flush(SyncSender<()>),
}

/// Where collections that have ended are left for the thread that makes their spans.
#[derive(Debug)]
pub(crate) struct Outbox(SyncSender<Letter>);

impl Outbox {
    /// Collections end once per interval and engine: more than so many at once means that the tracer hangs.
    const BOUND: usize = 256;

    /// Starts the thread. It ends when the outbox is dropped, with what is in it done.
    pub(crate) fn open(make: MakeSpan) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(Self::BOUND);
        thread::Builder::new().name("spec-decode-trace".to_owned()).spawn(move || work(&receiver, make))?;
        Ok(Self(sender))
    }

    /// Leaves a collection, or drops it if there is no room.
    pub(super) fn put(&self, collected: Collected) {
        let _ = self.0.try_send(Letter::Collected(Box::new(collected)));
    }

    /// Waits until all that was left before is done.
    pub(super) fn flush(&self, deadline: Option<Instant>) {
        let (done, is_done) = sync_channel(1);
        let mut letter = Letter::Flush(done);
        let left = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        while let Err(TrySendError::Full(returned)) = self.0.try_send(letter) {
            if left().is_zero() {
                return;
            }
            letter = returned;
            thread::sleep(Duration::from_millis(1));
        }
        let _ = is_done.recv_timeout(left());
    }
}

fn work(letters: &Receiver<Letter>, mut make: MakeSpan) {
    for letter in letters {
        match letter {
            Letter::Collected(collected) => make(*collected),
            Letter::Flush(done) => {
                let _ = done.try_send(());
            }
        }
    }
}
