//! Which steps are worth a trace: those in which a copy may start or end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

use crate::handle::Handle;
use crate::shared::Shared;

/// A filter for the OpenTelemetry layer: of the steps it shows those in which a copy of the counters may start or end,
/// and everything else as it is. Tracing every step costs many times what counting it does.
///
/// Let it be bounded by a level as well: below INFO are the spans of the exporter's own HTTP stack, which would trace its
/// own exports.
///
/// ```
/// # use std::time::Duration;
/// # use opentelemetry::trace::TracerProvider as _;
/// # use opentelemetry_sdk::trace::SdkTracerProvider;
/// use tracing_subscriber::filter::{FilterExt, LevelFilter};
/// use tracing_subscriber::layer::{Layer, SubscriberExt};
///
/// # let traces = SdkTracerProvider::builder().build();
/// let (layer, handle) = tracing_spec_decode::builder().with_tracer_provider(&traces).build()?;
/// let otel = tracing_opentelemetry::layer().with_tracer(traces.tracer("engine"));
/// let otel = otel.with_filter(LevelFilter::INFO.and(handle.collecting_steps(Duration::from_millis(100))));
/// let subscriber = tracing_subscriber::registry().with(layer).with(otel);
/// # drop(subscriber);
/// # Ok::<(), tracing_spec_decode::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct CollectingSteps {
    shared: Arc<Shared>,
    longest_step: u64,
}

impl Handle {
    /// A filter that lets an OpenTelemetry layer see only the steps in which a copy may start or end.
    ///
    /// A copy starts when a step ends, but a filter is asked when it begins: `longest_step` is how far to look ahead. A
    /// step that takes longer may start a copy without being traced, and that copy then has no span.
    #[must_use]
    pub fn collecting_steps(&self, longest_step: Duration) -> CollectingSteps {
        let shared = Arc::clone(&self.shared);
        CollectingSteps { longest_step: shared.ticks.in_duration(longest_step), shared }
    }
}

impl CollectingSteps {
    fn is_step(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == &*self.shared.span_name
    }

    fn collects(&self) -> bool {
        let until = self.shared.ticks.now().saturating_add(self.longest_step);
        self.shared.engines.iter().any(|engine| {
            engine.hot.in_flight.load(Ordering::Relaxed) || engine.hot.due.load(Ordering::Relaxed) <= until
        })
    }
}

impl<S: Subscriber> Filter<S> for CollectingSteps {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        !self.is_step(metadata) || (self.shared.has_sources() && self.collects())
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.is_step(metadata) { Interest::sometimes() } else { Interest::always() }
    }
}
