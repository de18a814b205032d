//! The self-check for a real GPU runs through on the simulated driver: what it checks holds there, its times mean nothing.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

#[path = "../examples/gpu_check/amounts.rs"]
mod amounts;
#[path = "../examples/gpu_check/captures.rs"]
mod captures;
#[path = "../examples/gpu_check/costs.rs"]
mod costs;
#[path = "../examples/gpu_check/engine.rs"]
mod engine;
#[path = "../examples/gpu_check/exact.rs"]
mod exact;
#[path = "../examples/gpu_check/gpu_time.rs"]
mod gpu_time;
#[path = "../examples/gpu_check/saturated.rs"]
mod saturated;
mod sim;
#[path = "../examples/gpu_check/timing.rs"]
mod timing;
#[path = "../examples/gpu_check/whole.rs"]
mod whole;

use amounts::Amounts;

#[test]
fn every_check_of_it() {
    let amounts = Amounts { steps: 3_000, samples: 200, calls: 50, captures: 50, transfer_bytes: 1 << 16 };
    let sim = sim::sim();
    assert_eq!(engine::device_name().unwrap(), "simulated device");
    let exact = exact::check(amounts).unwrap();
    assert!(exact["of_these_by_graph_replay"].as_u64().unwrap() > 1_000);
    assert_eq!(whole::check(amounts).unwrap()["torn"], 0);
    assert_eq!(captures::elsewhere(amounts).unwrap()["broken"], 0);
    assert_eq!(captures::own(amounts).unwrap()["skipped"], 50);
    saturated::check(amounts).unwrap();
    sim.set_cost(sim::KERNEL, std::time::Duration::from_micros(3));
    let gpu_time = gpu_time::check(amounts).unwrap();
    // One launch drafts, and 4.38 verify on average.
    assert_eq!(gpu_time["mean_step_us"].as_f64().unwrap().round(), 16.0);
    costs::measure(amounts).unwrap();
    assert_eq!(sim.misuse(), "");
}
