//! Everything that can be set, checked here.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use tracing::Subscriber;
use tracing_subscriber::Layer as _;
use tracing_subscriber::registry::LookupSpan;

use crate::callsites::Callsites;
use crate::engines::Engines;
use crate::handle::Handle;
use crate::layer::{SpecDecodeLayer, StepFilter, StepLayer};
use crate::open_steps::OpenSteps;
use crate::phases::{DRAFT_SPAN_NAME, OpenPhases, Phase, VERIFY_SPAN_NAME};
use crate::shared::Shared;
use crate::step::SPAN_NAME;
use crate::ticks::Ticks;
#[cfg(feature = "otel-trace")]
use crate::trace::{Outbox, Tracing};

/// Sets a layer up: see [`builder`].
#[must_use]
pub struct Builder<'a> {
    span_name: String,
    phase_names: [String; Phase::COUNT],
    interval: Duration,
    rank: u32,
    engines: usize,
    positions: usize,
    open_steps: usize,
    clock: Option<quanta::Clock>,
    #[cfg(feature = "otel")]
    provider: Option<&'a dyn opentelemetry::metrics::MeterProvider>,
    #[cfg(feature = "otel")]
    instance: Option<String>,
    #[cfg(feature = "otel-trace")]
    make_span: Option<crate::trace::MakeSpan>,
    lifetime: std::marker::PhantomData<&'a ()>,
}

/// A layer with an interval of five seconds, for up to 64 engines, 16 draft positions and 256 open steps.
pub fn builder<'a>() -> Builder<'a> {
    Builder {
        span_name: SPAN_NAME.to_owned(),
        phase_names: [DRAFT_SPAN_NAME.to_owned(), VERIFY_SPAN_NAME.to_owned()],
        interval: Duration::from_secs(5),
        rank: 0,
        engines: 64,
        positions: 16,
        open_steps: 256,
        clock: None,
        #[cfg(feature = "otel")]
        provider: None,
        #[cfg(feature = "otel")]
        instance: None,
        #[cfg(feature = "otel-trace")]
        make_span: None,
        lifetime: std::marker::PhantomData,
    }
}

impl<'a> Builder<'a> {
    /// The longest interval.
    pub const MAX_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

    /// The name of the span that is a step, in place of `spec_decode_step`.
    pub fn with_span_name(self, name: impl Into<String>) -> Self {
        Self { span_name: name.into(), ..self }
    }

    /// The name of the span inside a step in which drafts are made, in place of `spec_decode_draft`: its time is told
    /// apart from the step's.
    pub fn with_draft_span_name(self, name: impl Into<String>) -> Self {
        let [_, verify] = self.phase_names;
        Self { phase_names: [name.into(), verify], ..self }
    }

    /// The name of the span inside a step in which drafts are verified, in place of `spec_decode_verify`.
    pub fn with_verify_span_name(self, name: impl Into<String>) -> Self {
        let [draft, _] = self.phase_names;
        Self { phase_names: [draft, name.into()], ..self }
    }

    /// At least so much lies between two copies, and between a window's two ends. At most a day.
    pub fn with_interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// This process's rank. Any other than 0 makes the layer inert.
    pub fn with_rank(self, rank: u32) -> Self {
        Self { rank, ..self }
    }

    /// How many engines there may be; steps of further ones are dropped, and counted.
    ///
    /// OpenTelemetry keeps 2,000 attribute sets of an instrument apart, and `spec_decode.steps` has two for each engine, the
    /// anomalies one for each kind that happened: from some hundred engines on give the provider a view with a higher
    /// cardinality limit.
    pub fn with_max_engines(self, engines: usize) -> Self {
        Self { engines, ..self }
    }

    /// How many draft positions are exported.
    pub fn with_max_positions(self, positions: usize) -> Self {
        Self { positions, ..self }
    }

    /// How many steps may be open at once; further ones are dropped, and counted.
    pub fn with_max_open_steps(self, open_steps: usize) -> Self {
        Self { open_steps, ..self }
    }

    /// The clock, in place of the processor's: a mock in a test.
    pub fn with_clock(self, clock: quanta::Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Where the metrics go. Without it they are to be had from the [`Handle`] only.
    #[cfg(feature = "otel")]
    pub fn with_meter_provider(self, provider: &'a dyn opentelemetry::metrics::MeterProvider) -> Self {
        Self { provider: Some(provider), ..self }
    }

    /// Tells a second layer on one provider apart, as the scope attribute `spec_decode.instance`.
    #[cfg(feature = "otel")]
    pub fn with_instance(self, instance: impl Into<String>) -> Self {
        Self { instance: Some(instance.into()), ..self }
    }

    /// Where collections become spans: with a `tracing-opentelemetry` layer in the same subscriber that sends to this
    /// provider, each copy of a source's counters is seen as a span `spec_decode.collect`, a child of the step that
    /// started it. The spans are made on a thread of the layer's own.
    #[cfg(feature = "otel-trace")]
    pub fn with_tracer_provider<P>(self, provider: &P) -> Self
    where
        P: opentelemetry::trace::TracerProvider,
        P::Tracer: Send + 'static,
    {
        let scope = opentelemetry::InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        Self { make_span: Some(crate::trace::span_maker(provider.tracer_with_scope(scope))), ..self }
    }

    /// The layer, and the handle to it. Keep the handle until after the meter provider's shutdown.
    ///
    /// # Errors
    ///
    /// [`BuildError`] says which setting is out of bounds.
    pub fn build<S>(self) -> Result<(SpecDecodeLayer<S>, Handle), BuildError>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        self.check()?;
        #[cfg(feature = "otel-trace")]
        let tracing = match self.make_span.filter(|_| self.rank == 0) {
            Some(make) => Some(Tracing::new(Outbox::open(make).map_err(|_| BuildError::Thread)?)),
            None => None,
        };
        let ticks = Ticks::new(self.clock.unwrap_or_default());
        let shared = Arc::new(Shared {
            span_name: self.span_name.into(),
            phase_names: self.phase_names.map(String::into_boxed_str),
            counts: self.rank == 0,
            #[cfg(feature = "otel")]
            interval: self.interval,
            interval_ticks: ticks.in_duration(self.interval),
            ticks,
            callsites: Callsites::new(),
            steps: OpenSteps::new(self.open_steps),
            phases: OpenPhases::new(self.open_steps),
            has_phases: AtomicBool::new(false),
            engines: Engines::new(self.engines, self.positions),
            default_engine: AtomicU32::new(u32::MAX),
            sources: AtomicU32::new(0),
            timed_sources: AtomicU32::new(0),
            flights: AtomicU32::new(0),
            generation: AtomicU64::new(0),
            engine_refused: AtomicU64::new(0),
            open_steps_over_bound: AtomicU64::new(0),
            #[cfg(feature = "otel-trace")]
            tracing,
        });
        #[cfg(feature = "otel")]
        if let Some(provider) = self.provider
            && shared.counts
        {
            crate::instruments::register(&shared, provider, self.instance);
        }
        let layer = StepLayer(Arc::clone(&shared)).with_filter(StepFilter(Arc::clone(&shared)));
        Ok((layer, Handle::new(shared)))
    }

    fn check(&self) -> Result<(), BuildError> {
        /// OpenTelemetry's limit of attribute sets per instrument.
        const MAX_SETS: usize = 2_000;
        let [draft, verify] = &self.phase_names;
        let names = [&self.span_name, draft, verify];
        if names.iter().any(|name| name.is_empty()) || names[0] == draft || names[0] == verify || draft == verify {
            return Err(BuildError::SpanName);
        }
        if self.interval > Self::MAX_INTERVAL {
            return Err(BuildError::Interval);
        }
        if self.engines == 0 || self.engines.saturating_mul(self.positions.max(1)) > MAX_SETS {
            return Err(BuildError::Engines);
        }
        if !(1..=65_536).contains(&self.open_steps) {
            return Err(BuildError::OpenSteps);
        }
        Ok(())
    }
}

impl fmt::Debug for Builder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("span_name", &self.span_name)
            .field("interval", &self.interval)
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

/// A setting that is out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// A span's name is empty, or two spans have the same.
    SpanName,
    /// The interval is longer than a day.
    Interval,
    /// No engine, or more attribute sets (engines times positions) than OpenTelemetry keeps apart.
    Engines,
    /// No open step, or more than 65,536.
    OpenSteps,
    /// The thread that makes spans could not be started.
    #[cfg(feature = "otel-trace")]
    Thread,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SpanName => "a span's name is empty, or two spans have the same",
            Self::Interval => "the interval is longer than a day",
            Self::Engines => "engines, times positions where there are any, must lie between 1 and 2,000",
            #[cfg(feature = "otel-trace")]
            Self::Thread => "the thread that makes spans could not be started",
            Self::OpenSteps => "the bound of open steps must lie between 1 and 65,536",
        })
    }
}

impl std::error::Error for BuildError {}
