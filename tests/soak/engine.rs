//! One engine as its own thread runs it, source and all, and what it has done so far.

use std::time::Duration;

use tracing::{Span, info_span};
use tracing_spec_decode::source::CounterSource;
use tracing_spec_decode::{Attached, EngineTotals, Handle, HostCounters, SourceState, step_span};

use super::device::Device;
use super::rng::Rng;

/// What an engine has done, or what of it was published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub plain: u64,
    pub drafted: u64,
    pub discarded: u64,
    pub drafts: u64,
    pub draft_tokens: u64,
    pub accepted: u64,
    pub emitted: u64,
}

impl Done {
    pub fn add(&mut self, other: &Self) {
        self.plain += other.plain;
        self.drafted += other.drafted;
        self.discarded += other.discarded;
        self.drafts += other.drafts;
        self.draft_tokens += other.draft_tokens;
        self.accepted += other.accepted;
        self.emitted += other.emitted;
    }

    fn steps(&self) -> [u64; 3] {
        [self.plain, self.drafted, self.discarded]
    }

    fn tokens(&self) -> [u64; 4] {
        [self.drafts, self.draft_tokens, self.accepted, self.emitted]
    }
}

impl From<&EngineTotals> for Done {
    fn from(totals: &EngineTotals) -> Self {
        Self {
            plain: totals.steps_plain,
            drafted: totals.steps_drafted,
            discarded: totals.discarded_draft_tokens.unwrap_or(0),
            drafts: totals.drafts,
            draft_tokens: totals.draft_tokens,
            accepted: totals.accepted_tokens,
            emitted: totals.emitted_tokens.unwrap_or(0),
        }
    }
}

pub fn published(handle: &Handle, engine: &str) -> Done {
    let totals = handle.totals();
    totals.engines.iter().find(|totals| totals.engine == engine).map(Done::from).unwrap_or_default()
}

const MOST_DRAFTS: usize = 3;
const MOST_K: usize = 8;

#[expect(dead_code, reason = "a guard is there to be dropped")]
enum Counting {
    /// By the fields of its spans.
    Fields,
    Device(Device, Attached),
    Host(HostCounters, Attached),
}

/// How often what happened to the engines' sources.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    pub attached: u64,
    pub detached_flushed: u64,
    pub detached_at_once: u64,
    pub died: u64,
}

pub struct Engine {
    pub name: String,
    pub done: Done,
    pub changes: Changes,
    counting: Counting,
    /// Its steps are entered more than once.
    as_futures: bool,
    /// Other threads run steps of it as well: it has no source, which comes and goes between steps.
    is_shared: bool,
    /// The last step, over and not closed, since something keeps a handle.
    kept: Option<Span>,
}

impl Engine {
    pub fn new(name: String, as_futures: bool, is_shared: bool) -> Self {
        let (done, changes) = (Done::default(), Changes::default());
        Self { name, done, changes, counting: Counting::Fields, as_futures, is_shared, kept: None }
    }

    pub fn step(&mut self, rng: &mut Rng) {
        let kept = self.kept.take();
        self.run_step(rng);
        drop(kept);
    }

    fn run_step(&mut self, rng: &mut Rng) {
        if rng.below(8) == 0 {
            let discarded = rng.below(3) as u64;
            let span = step_span!(num_spec_tokens = 0, num_discarded_draft_tokens = discarded, engine = &*self.name);
            drop(span.entered());
            self.done.plain += 1;
            self.done.discarded += discarded;
            return;
        }
        let k = 1 + rng.below(MOST_K);
        let drafts: Vec<(u64, u64)> = (0..=rng.below(MOST_DRAFTS))
            .map(|_| {
                let drafted = 1 + rng.below(k);
                (drafted as u64, rng.below(drafted + 1) as u64)
            })
            .collect();
        let tokens: u64 = drafts.iter().map(|draft| draft.0).sum();
        let accepted: u64 = drafts.iter().map(|draft| draft.1).sum();
        let emitted = accepted + drafts.len() as u64;
        // Cancelled before the counts are known: without a source it counts as a step and nothing else.
        let is_cancelled = matches!(self.counting, Counting::Fields) && rng.below(64) == 0;
        let span =
            step_span!(num_spec_tokens = k, num_drafts = drafts.len(), num_draft_tokens = tokens, engine = &*self.name);
        if self.as_futures {
            drop(span.enter());
        }
        span.in_scope(|| {
            drop(info_span!("forward", tokens).entered());
            drafts.iter().for_each(|&(drafted, accepted)| self.count(drafted, accepted));
            if !is_cancelled {
                span.record("num_accepted_tokens", accepted);
                span.record("num_emitted_tokens", emitted);
            }
        });
        self.done.drafted += 1;
        if !is_cancelled {
            self.done.drafts += drafts.len() as u64;
            self.done.draft_tokens += tokens;
            self.done.accepted += accepted;
            self.done.emitted += emitted;
        }
        if !self.is_shared && rng.below(256) == 0 {
            self.kept = Some(span);
        }
    }

    fn count(&mut self, drafted: u64, accepted: u64) {
        match &mut self.counting {
            Counting::Fields => {}
            Counting::Device(device, _) => device.count(drafted, accepted),
            Counting::Host(counters, _) => {
                assert!(counters.record_draft(drafted as u32, accepted as u32, accepted as u32 + 1));
            }
        }
    }

    /// Between two steps: notices a death, and now and then attaches or detaches.
    pub fn between_steps(&mut self, handle: &Handle, rng: &mut Rng, steps_between_changes: usize) {
        if self.is_shared {
            return;
        }
        let has_died = matches!(&self.counting, Counting::Device(device, _) if device.is_dead());
        if has_died || rng.below(steps_between_changes) == 0 {
            self.kept = None;
            if has_died {
                self.changes.died += 1;
                self.lose_source(handle);
            } else if matches!(self.counting, Counting::Fields) {
                self.attach(handle, rng);
            } else if rng.below(2) == 0 {
                self.changes.detached_at_once += 1;
                self.lose_source(handle);
            } else {
                self.changes.detached_flushed += 1;
                self.flush(handle);
                self.lose_source(handle);
            }
        }
    }

    fn attach(&mut self, handle: &Handle, rng: &mut Rng) {
        fn attach(handle: &Handle, engine: &str, source: impl CounterSource + 'static) -> Attached {
            handle.attach(engine, source).expect("it has no source, and this one is well")
        }
        self.changes.attached += 1;
        self.counting = match rng.below(3) {
            0 => {
                let counters = HostCounters::new();
                let attached = attach(handle, &self.name, counters.source());
                Counting::Host(counters, attached)
            }
            which => {
                let device = Device::new(which == 1, Rng::new(rng.below(1 << 30) as u64, 0));
                let attached = attach(handle, &self.name, device.source());
                device.be_well(false);
                Counting::Device(device, attached)
            }
        };
    }

    /// Without a flush, what is in no sample is dropped. A source that dies inside a step may have had the step's tokens
    /// in a sample before; at its close the fields say them again.
    fn lose_source(&mut self, handle: &Handle) {
        let counting = std::mem::replace(&mut self.counting, Counting::Fields);
        drop(counting);
        // Whoever holds the engine at this moment, to flush it or to read, does the detaching.
        while handle.status(&self.name).source != SourceState::None {
            std::thread::yield_now();
        }
        let published = published(handle, &self.name);
        assert_eq!(published.steps(), self.done.steps(), "{}: a step is never lost", self.name);
        let pairs = published.tokens().into_iter().zip(self.done.tokens());
        assert!(
            pairs.into_iter().all(|(published, done)| published <= done),
            "{}: {published:?} {:?}",
            self.name,
            self.done
        );
        self.done = published;
    }

    /// With a well device nothing is lost: what is published is what was done. False if it has died before.
    fn flush(&mut self, handle: &Handle) -> bool {
        if let Counting::Device(device, _) = &self.counting {
            device.be_well(true);
        }
        // Other engines are in the middle of their steps, and may fail.
        let is_ours = |failed: &str| failed == self.name;
        while handle.flush(Duration::from_millis(20)).is_err_and(|error| error.failures().any(|one| is_ours(one.0))) {
            if matches!(&self.counting, Counting::Device(device, _) if device.is_dead()) {
                return false;
            }
        }
        assert_eq!(published(handle, &self.name), self.done, "{}: exact after a flush", self.name);
        true
    }

    /// The last thing: nothing is open, and the source is well.
    pub fn end(&mut self, handle: &Handle) {
        self.kept = None;
        match &self.counting {
            Counting::Device(device, _) if device.is_dead() => self.lose_source(handle),
            Counting::Device(device, _) => device.be_well(true),
            _ => {}
        }
    }
}
