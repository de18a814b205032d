//! A copy that is held stays pending however often it is asked for, and gives the right numbers once it lands.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;

use cudarc::driver::sys;
use sim::{ALL, DEVICE_COPY, Engine, RECORD, TO_HOST, sim};
use tracing_spec_decode::source::{CounterSource, Counters, Snapshot};

#[test]
fn whatever_part_of_it_is_held() {
    let sim = sim();
    // Reading the pinned block before the event has said so would end this process.
    sim.guard_pinned();
    let engine = Engine::new(0);
    let mut source = engine.source();
    for (round, held) in (1i64..).zip([DEVICE_COPY, TO_HOST, RECORD, ALL]) {
        engine.set(round * 10, round * 12);
        sim.settle();
        sim.hold(0, held);
        let mut counters = Counters::for_layout(source.layout());
        source.start().unwrap();
        // The engine goes on: what it counts from here on is not in the sample.
        engine.set(round * 10 + 1, round * 12 + 1);
        for _ in 0..100 {
            assert_eq!(source.poll(&mut counters), Ok(Snapshot::Pending));
        }
        assert_eq!(counters, Counters::for_layout(source.layout()));
        sim.release(0, held);
        sim.settle();
        assert_eq!(source.poll(&mut counters), Ok(Snapshot::Landed));
        let expected = (round.unsigned_abs() * 10, round.unsigned_abs() * 12);
        assert_eq!((counters.accepted, counters.emitted), expected);
    }
    assert_eq!(sim.misuse(), "");
}

/// The counterpart: the simulator does catch one who reads early.
#[test]
fn an_early_read_would_have_been_caught() {
    use std::os::unix::process::ExitStatusExt;
    const CHILD: &str = "READ_EARLY";
    if std::env::var_os(CHILD).is_some() {
        let sim = sim();
        sim.guard_pinned();
        let engine = Engine::new(0);
        engine.context.bind_to_thread().unwrap();
        sim.hold(0, TO_HOST);
        let pinned = unsafe { cudarc::driver::result::malloc_host(16, 0) }.unwrap();
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(pinned, engine.address(), 16, engine.stream.cu_stream()) };
        assert_eq!(code as u32, 0);
        let early = unsafe { pinned.cast::<i64>().read_volatile() };
        unreachable!("read {early}");
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_early_read_would_have_been_caught"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(child.status.signal(), Some(11), "{child:?}");
}
