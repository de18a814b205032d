//! Asked for, the time of sampled steps is the device's own, to the nanosecond of the simulated clock.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;
mod support;

use std::process::Command;
use std::time::Duration;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use sim::{Engine, Sim, TO_DEVICE, TO_HOST, sim};
use support::Stack;
use tracing::info_span;
use tracing_spec_decode::cuda::{CudaSource, DeviceCounters};
use tracing_spec_decode::source::{CounterSource, Counters, Mark, Part, Snapshot};
use tracing_spec_decode::{GpuTotals, TimedSteps, step_span};

/// A step without work publishes what has landed, and an interval passes.
fn publish(stack: &Stack, sim: &Sim) -> GpuTotals {
    sim.settle();
    step().in_scope(|| ());
    stack.pass(6_000);
    stack.gpu()
}

fn step() -> tracing::Span {
    step_span!(num_spec_tokens = 4, num_drafts = 1)
}

fn work(engine: &Engine, operations: i64) {
    (0..operations).for_each(|number| engine.set(number, number));
}

/// A step of 7 operations: 2 draft, 4 verify.
fn run_step(engine: &Engine) {
    step().in_scope(|| {
        info_span!("spec_decode_draft").in_scope(|| work(engine, 2));
        work(engine, 1);
        info_span!("spec_decode_verify").in_scope(|| work(engine, 4));
    });
}

fn timed(steps: u64, micros: u64) -> TimedSteps {
    TimedSteps { steps, time: Duration::from_micros(micros) }
}

#[test]
fn of_sampled_steps_and_their_phases() {
    let sim = sim();
    let engine = Engine::new(0);
    let (stack, _attached) = Stack::due(engine.source().with_gpu_time().unwrap());
    sim.set_cost(TO_DEVICE, Duration::from_micros(500));
    // The host's clock stands still, and the device has not begun: what counts is what it takes.
    sim.hold(engine.handle(), TO_DEVICE);
    run_step(&engine);
    run_step(&engine);
    assert_eq!(stack.gpu(), GpuTotals::default());
    sim.release(engine.handle(), TO_DEVICE);
    let gpu = publish(&stack, &sim);
    assert_eq!((gpu.step, gpu.draft, gpu.verify), (timed(1, 3_500), timed(1, 1_000), timed(1, 2_000)));
    sim.set_cost(TO_DEVICE, Duration::from_micros(1));
    run_step(&engine);
    let gpu = publish(&stack, &sim);
    assert_eq!((gpu.step, gpu.draft, gpu.verify), (timed(2, 3_507), timed(2, 1_002), timed(2, 2_004)));
    let points = stack.collect();
    for (phase, seconds) in [("step", 0.003_507), ("draft", 0.001_002), ("verify", 0.002_004)] {
        let point =
            |name: &str| points[&format!("spec_decode.gpu.{name}{{spec_decode.engine=0,spec_decode.phase={phase}}}")];
        assert_eq!((point("time"), point("steps")), (seconds, 2.0));
    }
    assert_eq!(sim.misuse(), "");
}

#[test]
fn also_with_counters_of_our_own_and_on_the_legacy_stream() {
    let sim = sim();
    let engine = Engine::new(0);
    let legacy = engine.context.default_stream();
    let counters = DeviceCounters::from_cudarc(&legacy, 4).unwrap();
    let (stack, _attached) = Stack::due(counters.source().unwrap().with_gpu_time().unwrap());
    sim.set_cost(TO_DEVICE, Duration::from_micros(500));
    step().in_scope(|| sim::set_on(&legacy, engine.address(), &[1]));
    assert_eq!(publish(&stack, &sim).step, timed(1, 500));
    assert_eq!(sim.misuse(), "");
}

/// What one mark does on a thread without a context.
const MARK: [&str; 7] = [
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamIsCapturing",
    "cuEventRecord",
    "cuThreadExchangeStreamCaptureMode",
    "cuCtxPopCurrent_v2",
];

/// The driver calls of the layer in one step in which the engine makes none, on a thread without a context.
fn calls_of_a_step(sim: &Sim) -> Vec<String> {
    let step = || {
        step().in_scope(|| {
            info_span!("spec_decode_draft").in_scope(|| ());
            info_span!("spec_decode_verify").in_scope(|| ());
        });
    };
    sim.calls_of(step).1
}

#[test]
fn a_boundary_costs_seven_calls_and_the_poll_three_more() {
    let sim = sim();
    let engine = Engine::new(0);
    let (stack, _attached) = Stack::due(engine.source().with_gpu_time().unwrap());
    unsafe { cudarc::driver::sys::cuCtxSetCurrent(std::ptr::null_mut()) }.result().unwrap();
    sim.hold(0, TO_HOST);
    let sampled = calls_of_a_step(&sim);
    assert_eq!(sampled.len(), 6 * 7 + 11);
    assert!(sampled.chunks(7).take(6).all(|calls| calls == MARK), "{sampled:?}");
    assert_eq!(calls_of_a_step(&sim).len(), 6, "a poll");
    sim.release(0, TO_HOST);
    sim.settle();
    let landed = calls_of_a_step(&sim);
    assert_eq!((landed.len(), landed.iter().filter(|name| *name == "cuEventElapsedTime_v2").count()), (9, 3));
    assert_eq!(calls_of_a_step(&sim), [""; 0], "a step that is not sampled");
    assert_eq!(stack.gpu().step.steps, 1);
}

#[test]
fn nothing_of_it_happens_unasked() {
    let sim = sim();
    let engine = Engine::new(0);
    let (stack, _attached) = Stack::due(engine.source());
    unsafe { cudarc::driver::sys::cuCtxSetCurrent(std::ptr::null_mut()) }.result().unwrap();
    assert_eq!(calls_of_a_step(&sim).len(), 11);
    sim.settle();
    assert_eq!(calls_of_a_step(&sim).len(), 6);
    assert_eq!((stack.gpu(), sim.calls(0, "cuEventElapsedTime_v2")), (GpuTotals::default(), 0));
    assert!(!stack.collect().keys().any(|name| name.starts_with("spec_decode.gpu")));
}

#[test]
fn marks_that_are_not_around_this_copy_give_no_time() {
    let sim = sim();
    let engine = Engine::new(0);
    let mut source = engine.source().with_gpu_time().unwrap();
    let mut sampled = |marks: &[Mark]| {
        marks.iter().for_each(|mark| source.mark(*mark).unwrap());
        sim::sample(&sim, &mut source);
        source.gpu_times().map(|times| (times.draft.is_some(), times.verify.is_some()))
    };
    use Mark::{Begin, End};
    let (step, draft, verify) = (Part::Step, Part::Draft, Part::Verify);
    assert_eq!(sampled(&[Begin(step), Begin(draft), End(draft), End(step)]), Some((true, false)));
    assert_eq!(sampled(&[]), None, "each copy needs marks of its own");
    assert_eq!(sampled(&[Begin(step)]), None);
    assert_eq!(sampled(&[End(step)]), None);
    assert_eq!(sampled(&[Begin(draft), End(draft), Begin(step), Begin(verify), End(step)]), Some((false, false)));
}

#[test]
fn while_the_stream_captures_there_is_no_mark_and_the_capture_goes_on() {
    let sim = sim();
    let engine = Engine::new(0);
    let (stack, _attached) = Stack::due(engine.source().with_gpu_time().unwrap());
    let block = engine.address();
    let work = || sim::set_on(&engine.stream, block, &[1]);
    let begin = || engine.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let end = || {
        engine.stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH).unwrap();
    };
    // Around the begin, around a phase, and around the end.
    begin();
    let span = step();
    let inside = span.enter();
    end();
    drop(inside);
    drop(span);
    assert_eq!(publish(&stack, &sim), GpuTotals::default());
    step().in_scope(|| {
        begin();
        info_span!("spec_decode_draft").in_scope(work);
        end();
        info_span!("spec_decode_verify").in_scope(work);
    });
    let gpu = publish(&stack, &sim);
    assert_eq!((gpu.step.steps, gpu.draft.steps, gpu.verify.steps), (1, 0, 1));
    let span = step();
    let inside = span.enter();
    begin();
    drop(inside);
    end();
    drop(span);
    step().in_scope(|| ());
    let gpu = publish(&stack, &sim);
    assert!(gpu.step.steps <= 2, "the step that was captured at its end has none");
    assert_eq!(sim.misuse(), "");
}

#[test]
fn on_a_per_thread_stream_marks_of_other_threads_are_refused() {
    let sim = sim();
    let engine = Engine::new(0);
    let stream = engine.context.per_thread_stream();
    let source = CudaSource::from_cudarc_per_thread(engine.counters.clone(), stream.clone(), Engine::words()).unwrap();
    let (stack, _attached) = Stack::due(source.with_gpu_time().unwrap());
    sim.set_cost(TO_DEVICE, Duration::from_micros(2));
    step().in_scope(|| {
        let draft = info_span!("spec_decode_draft");
        let dispatch = tracing::dispatcher::get_default(Clone::clone);
        std::thread::scope(|scope| {
            scope.spawn(|| tracing::dispatcher::with_default(&dispatch, || draft.in_scope(|| ())));
        });
        info_span!("spec_decode_verify").in_scope(|| sim::set_on(&stream, engine.address(), &[1]));
    });
    let gpu = publish(&stack, &sim);
    assert_eq!((gpu.step, gpu.draft, gpu.verify), (timed(1, 2), timed(0, 0), timed(1, 2)));
}

const CHILD: &str = "CUDA_GPU_TIME_CHILD";

/// A driver under whose new name, or both, `cuEventElapsedTime` is not to be found.
#[test]
fn the_function_is_found_under_either_name_and_without_it_there_is_no_time() {
    if let Ok(kind) = std::env::var(CHILD) {
        let copy = std::env::temp_dir().join(format!("simcuda-time-{}.so", std::process::id()));
        let mut bytes = std::fs::read(sim::path()).unwrap();
        let names: &[&[u8]] = if kind == "both" {
            &[b"\0cuEventElapsedTime_v2\0", b"\0cuEventElapsedTime\0"]
        } else {
            &[b"\0cuEventElapsedTime_v2\0"]
        };
        for name in names {
            let last = name.len() - 2;
            let places: Vec<usize> =
                (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(name)).collect();
            assert!(!places.is_empty());
            places.iter().for_each(|at| bytes[at + last] = b'x');
        }
        std::fs::write(&copy, bytes).unwrap();
        let library = unsafe { libloading::Library::new(&copy) };
        std::fs::remove_file(&copy).unwrap();
        let _library = library.unwrap();
        let counters = unsafe { DeviceCounters::new(std::ptr::null_mut(), std::ptr::null_mut(), 0, 1, None) }.unwrap();
        let mut source = counters.source().unwrap().with_gpu_time().unwrap();
        assert_eq!(source.times_steps(), kind == "new");
        for mark in [Mark::Begin(Part::Step), Mark::End(Part::Step)] {
            source.mark(mark).unwrap();
        }
        source.start().unwrap();
        let mut read = Counters::for_layout(source.layout());
        assert_eq!(source.wait(&mut read, Duration::from_secs(5)), Ok(Snapshot::Landed));
        assert_eq!(source.gpu_times().is_some(), kind == "new");
        return;
    }
    for kind in ["new", "both"] {
        let test = "the_function_is_found_under_either_name_and_without_it_there_is_no_time";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", test]).env(CHILD, kind).output().unwrap();
        assert!(child.status.success(), "{kind}: {child:?}");
    }
}
