//! A sampled step has marks around it and its phases, and a time on the device if nothing else is between them.
#![allow(missing_docs)]

mod support;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use support::{Stack, Watchdog};
use tracing::info_span;
use tracing_spec_decode::source::{
    Busy, CounterSource, Counters, Dead, GpuTimes, Layout, Mark, Part, Snapshot, SourceError,
};
use tracing_spec_decode::{Attached, GpuTotals, TimedSteps, step_span};

/// A device whose clock is set by the test, with the marks that it was asked for.
#[derive(Default)]
struct State {
    now: Duration,
    marks: Vec<(Mark, Duration)>,
    asked: usize,
    pending: usize,
    /// What happens elsewhere while this mark is made.
    meanwhile: Option<(Mark, Box<dyn FnOnce() + Send>)>,
    refuses_marks: Option<SourceError>,
    refuses_starts: Option<SourceError>,
    panics: bool,
}

#[derive(Clone, Default)]
struct Device(Arc<Mutex<State>>);

impl Device {
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }

    fn work(&self, millis: u64) {
        self.with(|state| state.now += Duration::from_millis(millis));
    }

    /// The marks since this was last asked.
    fn marks(&self) -> Vec<Mark> {
        self.with(|state| std::mem::take(&mut state.marks)).into_iter().map(|(mark, _)| mark).collect()
    }
}

impl CounterSource for Device {
    fn layout(&self) -> Layout {
        Layout::accepted().with_drafts().with_draft_tokens()
    }

    fn start(&mut self) -> Result<(), SourceError> {
        self.with(|state| state.refuses_starts.map_or(Ok(()), Err))
    }

    fn poll(&mut self, _: &mut Counters) -> Result<Snapshot, SourceError> {
        self.with(|state| {
            let is_pending = state.pending > 0;
            state.pending = state.pending.saturating_sub(1);
            Ok(if is_pending { Snapshot::Pending } else { Snapshot::Landed })
        })
    }

    fn times_steps(&self) -> bool {
        true
    }

    fn mark(&mut self, mark: Mark) -> Result<(), SourceError> {
        let (refuses, panics, meanwhile) = self.with(|state| {
            let now = state.now;
            state.marks.push((mark, now));
            (state.refuses_marks, state.panics, state.meanwhile.take_if(|(at, _)| *at == mark))
        });
        if let Some((_, happens)) = meanwhile {
            happens();
        }
        assert!(!panics, "a mark that panics");
        refuses.map_or(Ok(()), Err)
    }

    fn gpu_times(&mut self) -> Option<GpuTimes> {
        self.with(|state| {
            state.asked += 1;
            let last = |mark: Mark| state.marks.iter().rev().find(|(made, _)| *made == mark).map(|(_, at)| *at);
            let time = |part: Part| Some(last(Mark::End(part))?.saturating_sub(last(Mark::Begin(part))?));
            Some(GpuTimes { step: time(Part::Step)?, draft: time(Part::Draft), verify: time(Part::Verify) })
        })
    }
}

struct Engine {
    attached: Option<Attached>,
    device: Device,
    stack: Stack,
    _watchdog: Watchdog,
}

impl Engine {
    /// A copy is due.
    fn due() -> Self {
        let watchdog = Watchdog::of(Duration::from_secs(60));
        let device = Device::default();
        let (stack, attached) = Stack::due(device.clone());
        Self { attached: Some(attached), device, stack, _watchdog: watchdog }
    }

    fn phase(&self, name: &'static str, millis: u64) {
        let span = if name == "draft" { info_span!("spec_decode_draft") } else { info_span!("spec_decode_verify") };
        span.in_scope(|| self.device.work(millis));
    }

    /// A step of 6 ms, of which it drafts 1 and verifies 3.
    fn whole_step(&self) {
        step().in_scope(|| {
            self.phase("draft", 1);
            self.device.work(2);
            self.phase("verify", 3);
        });
    }

    fn gpu(&self) -> GpuTotals {
        self.stack.gpu()
    }

    /// Another interval passes, and a step without work publishes the copy in flight.
    fn publish(&self) {
        step().in_scope(|| ());
        self.stack.pass(6_000);
    }

    /// Nothing was timed, and the next step is.
    fn recovers_without_a_time(&self) {
        self.publish();
        assert_eq!(self.gpu(), GpuTotals::default());
        assert!(!self.stack.collect().keys().any(|name| name.starts_with("spec_decode.gpu")));
        self.whole_step();
        self.publish();
        assert_eq!(self.gpu(), once(6, Some(1), Some(3)));
    }
}

fn step() -> tracing::Span {
    step_span!(parent: None, num_spec_tokens = 4, num_drafts = 1)
}

fn timed(steps: u64, millis: u64) -> TimedSteps {
    TimedSteps { steps, time: Duration::from_millis(millis) }
}

fn once(step: u64, draft: Option<u64>, verify: Option<u64>) -> GpuTotals {
    let phase = |time: Option<u64>| time.map_or(timed(0, 0), |time| timed(1, time));
    GpuTotals { step: timed(1, step), draft: phase(draft), verify: phase(verify) }
}

const ALL_MARKS: [Mark; 6] = [
    Mark::Begin(Part::Step),
    Mark::Begin(Part::Draft),
    Mark::End(Part::Draft),
    Mark::Begin(Part::Verify),
    Mark::End(Part::Verify),
    Mark::End(Part::Step),
];

#[test]
fn only_steps_that_begin_when_a_copy_is_due_are_marked() {
    let engine = Engine::due();
    engine.device.with(|state| state.pending = 2);
    engine.whole_step();
    assert_eq!(
        engine.device.with(|state| state.marks.clone()).into_iter().map(|mark| mark.0).collect::<Vec<_>>(),
        ALL_MARKS
    );
    // In flight for two steps more; then it has landed, and the interval begins.
    for _ in 0..5 {
        engine.whole_step();
    }
    assert_eq!((engine.device.marks().len(), engine.device.with(|state| state.asked)), (6, 1));
    assert_eq!(engine.gpu(), once(6, Some(1), Some(3)));
    engine.stack.pass(6_000);
    engine.whole_step();
    engine.publish();
    let gpu = engine.gpu();
    assert_eq!((gpu.step, gpu.draft, gpu.verify), (timed(2, 12), timed(2, 2), timed(2, 6)));
    assert_eq!((gpu.step.mean(), TimedSteps::default().mean()), (Some(Duration::from_millis(6)), None));
    let points = engine.stack.collect();
    for (phase, time) in [("step", 0.012), ("draft", 0.002), ("verify", 0.006)] {
        let point =
            |name: &str| points[&format!("spec_decode.gpu.{name}{{spec_decode.engine=0,spec_decode.phase={phase}}}")];
        assert_eq!((point("time"), point("steps")), (time, 2.0));
    }
}

#[test]
fn the_totals_are_those_of_the_last_sample_and_count_on_over_a_detach() {
    let mut engine = Engine::due();
    engine.whole_step();
    engine.publish();
    let earlier = engine.stack.metrics();
    assert_eq!(earlier.gpu, once(6, Some(1), Some(3)));
    engine.whole_step();
    assert_eq!(engine.stack.metrics().gpu, earlier.gpu);
    engine.publish();
    let later = engine.stack.metrics();
    assert_eq!((later.since(&earlier).gpu, earlier.merged(&earlier).gpu), (earlier.gpu, later.gpu));
    engine.attached = None;
    engine.device.marks();
    engine.whole_step();
    assert_eq!((engine.device.marks(), engine.gpu()), (vec![], later.gpu));
    engine.attached = Some(engine.stack.handle.attach("0", engine.device.clone()).unwrap());
    assert_eq!(engine.stack.metrics().gpu, GpuTotals::default());
    assert_eq!(engine.gpu(), later.gpu);
}

#[test]
fn a_copy_that_another_step_starts_has_no_time() {
    let engine = Engine::due();
    let (one, other) = (step(), step());
    let in_one = one.enter();
    engine.device.work(1);
    other.in_scope(|| engine.device.work(1));
    assert_eq!(engine.device.marks(), [Mark::Begin(Part::Step)], "the other one began while it was under way");
    drop(in_one);
    drop((one, other));
    engine.recovers_without_a_time();
}

/// A step on another thread, under this thread's layer, that stays inside until the sender is dropped.
fn elsewhere() -> (impl FnOnce() -> JoinHandle<()> + Send, Sender<()>) {
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    let (end, until) = channel::<()>();
    let run = move || {
        let (is_inside, inside) = channel();
        let thread = std::thread::spawn(move || {
            let run = || {
                is_inside.send(()).unwrap();
                let _ = until.recv();
            };
            tracing::dispatcher::with_default(&dispatch, || step().in_scope(run));
        });
        inside.recv().unwrap();
        thread
    };
    (run, end)
}

#[test]
fn a_step_that_comes_and_goes_on_another_thread_meanwhile_leaves_no_time() {
    let engine = Engine::due();
    let (run, end) = elsewhere();
    drop(end);
    let run = Box::new(|| run().join().unwrap());
    engine.device.with(|state| state.meanwhile = Some((Mark::Begin(Part::Draft), run)));
    engine.whole_step();
    engine.recovers_without_a_time();
}

#[test]
fn a_step_that_begins_on_another_thread_while_the_copy_starts_leaves_no_time() {
    let engine = Engine::due();
    let (run, end) = elsewhere();
    let (started, thread) = channel();
    let run = Box::new(move || started.send(run()).unwrap());
    engine.device.with(|state| state.meanwhile = Some((Mark::End(Part::Step), run)));
    engine.whole_step();
    drop(end);
    thread.recv().unwrap().join().unwrap();
    engine.recovers_without_a_time();
}

#[test]
fn a_step_that_begins_inside_another_is_not_timed() {
    let engine = Engine::due();
    engine.device.with(|state| state.refuses_starts = Some(SourceError::Busy(Busy::Capturing)));
    let outer = step();
    let in_outer = outer.enter();
    engine.device.marks();
    engine.whole_step();
    engine.whole_step();
    assert_eq!(engine.device.marks(), []);
    engine.device.with(|state| state.refuses_starts = None);
    drop(in_outer);
    drop(outer);
    engine.recovers_without_a_time();
}

#[test]
fn a_copy_that_a_flush_or_an_idle_poll_starts_has_no_time() {
    let engine = Engine::due();
    let in_step = step().entered();
    engine.stack.handle.poll("0");
    drop(in_step);
    engine.publish();
    assert_eq!(engine.device.marks(), [Mark::Begin(Part::Step)]);
    engine.stack.handle.poll("0");
    engine.publish();
    assert_eq!(engine.device.marks(), [], "no step, no mark");
    let in_step = step().entered();
    engine.stack.flush();
    engine.stack.pass(6_000);
    drop(in_step);
    engine.recovers_without_a_time();
}

#[test]
fn a_void_copy_has_no_time_and_futures_are_timed_to_their_close() {
    let engine = Engine::due();
    let future = step();
    future.in_scope(|| engine.device.work(1));
    assert_eq!(engine.device.marks(), [Mark::Begin(Part::Step), Mark::End(Part::Step)]);
    future.in_scope(|| engine.device.work(1));
    drop(future);
    step().in_scope(|| ());
    engine.publish();
    let voided = engine.gpu();
    assert_eq!(voided.step.time, Duration::ZERO, "none but steps without work");
    engine.device.marks();
    // Now they are known as futures.
    let future = step();
    let draft = future.in_scope(|| {
        engine.device.work(1);
        info_span!("spec_decode_draft")
    });
    for _ in 0..3 {
        future.in_scope(|| draft.in_scope(|| engine.device.work(2)));
    }
    drop(draft);
    future.in_scope(|| engine.device.work(4));
    drop(future);
    engine.publish();
    let gpu = engine.gpu();
    assert_eq!((gpu.step.time, gpu.draft), (Duration::from_millis(11), timed(1, 6)));
}

#[test]
fn suspended_futures_overlap() {
    let engine = Engine::due();
    let future = step();
    future.in_scope(|| ());
    future.in_scope(|| ());
    drop(future);
    // The void copy, and one that this step starts at its close.
    engine.publish();
    engine.publish();
    let before = engine.gpu();
    let suspended = step();
    suspended.in_scope(|| engine.device.work(1));
    step().in_scope(|| engine.device.work(1));
    drop(suspended);
    engine.publish();
    assert_eq!(engine.gpu(), before);
}

#[test]
fn a_start_that_is_refused_drops_the_marks() {
    let engine = Engine::due();
    engine.device.with(|state| state.refuses_starts = Some(SourceError::Busy(Busy::Capturing)));
    engine.whole_step();
    engine.device.with(|state| state.refuses_starts = None);
    assert_eq!(engine.device.marks(), ALL_MARKS);
    // A copy without marks of its own: it does not get those.
    engine.stack.handle.poll("0");
    engine.recovers_without_a_time();
}

#[test]
fn a_mark_that_fails_costs_its_part_the_time_and_nothing_else() {
    let refused = Some(SourceError::Busy(Busy::Capturing));
    let collections = |engine: &Engine| engine.stack.handle.totals().engines[0].collections.clone();
    let engine = Engine::due();
    engine.device.with(|state| state.refuses_marks = refused);
    engine.whole_step();
    engine.device.with(|state| state.refuses_marks = None);
    assert_eq!(engine.device.marks(), [Mark::Begin(Part::Step)]);
    engine.publish();
    // The end of the step.
    let span = step();
    span.in_scope(|| {
        engine.device.work(1);
        engine.device.with(|state| state.refuses_marks = refused);
    });
    drop(span);
    engine.device.with(|state| state.refuses_marks = None);
    engine.publish();
    assert_eq!(engine.gpu(), GpuTotals::default());
    // The end of a phase.
    step().in_scope(|| {
        info_span!("spec_decode_draft").in_scope(|| {
            engine.device.work(1);
            engine.device.with(|state| state.refuses_marks = refused);
        });
        engine.device.with(|state| state.refuses_marks = None);
        engine.phase("verify", 2);
    });
    engine.publish();
    assert_eq!(engine.gpu(), once(3, None, Some(2)));
    assert_eq!(collections(&engine), [("resolved", None, 3)]);
}

#[test]
fn a_source_that_will_never_mark_again_is_not_asked_again() {
    for panics in [false, true] {
        let engine = Engine::due();
        let dead = SourceError::Dead(Dead::NoDriver);
        engine.device.with(|state| (state.panics, state.refuses_marks) = (panics, Some(dead)));
        engine.whole_step();
        engine.device.with(|state| (state.panics, state.refuses_marks) = (false, None));
        engine.publish();
        engine.device.marks();
        engine.whole_step();
        engine.publish();
        assert_eq!((engine.device.marks(), engine.gpu()), (vec![], GpuTotals::default()));
        assert_eq!(engine.stack.handle.totals().engines[0].collections, [("resolved", None, 2)]);
    }
}

#[test]
fn a_phase_that_comes_twice_or_lasts_longer_has_no_time() {
    let engine = Engine::due();
    let verify = step().in_scope(|| {
        engine.phase("draft", 1);
        engine.phase("draft", 1);
        let verify = info_span!("spec_decode_verify");
        verify.in_scope(|| engine.device.work(1));
        let _ = verify.clone().entered();
        verify
    });
    drop(verify);
    engine.publish();
    assert_eq!(engine.gpu(), once(3, None, Some(1)));

    let still_inside = step().in_scope(|| info_span!("spec_decode_verify").entered());
    drop(still_inside);
    engine.publish();
    assert_eq!(engine.gpu().verify, timed(1, 1));
}

#[test]
fn phases_of_other_steps_are_not_marked() {
    let engine = Engine::due();
    let earlier = step();
    step().in_scope(|| {
        info_span!(parent: &earlier, "spec_decode_draft").in_scope(|| engine.device.work(1));
        info_span!(parent: None, "spec_decode_draft").in_scope(|| engine.device.work(1));
        engine.phase("verify", 1);
    });
    drop(earlier);
    engine.publish();
    assert_eq!(engine.gpu(), once(3, None, Some(1)));
}
