//! A simulated CUDA driver library, for tests on machines without a GPU.
//!
//! It answers the calls that the layer and cudarc make, by the documented rules: streams with a thread each, events,
//! contexts and their stack, captures and graphs, modules whose kernels run on the host. A test can hold and release
//! work, order errors from any function, and ask afterwards which thread called what, and what was misused.
//!
//! **What it is evidence of:** the calls that a program makes, their order and their bookkeeping. It replays rules that
//! were written into it and says nothing about what NVIDIA's driver does, nor about how long anything takes there: the
//! times between its events are what a test says that work costs.
//!
//! Building it takes a C++ compiler, for the host build of the counting kernels.
//!
//! The file is `libsimcuda.so` and its SONAME is `libcuda.so`. A test opens it by absolute path; from then on everyone
//! in that process who asks for `libcuda.so` gets it, and nobody in any other process does.

// Written for Linux: elsewhere it is empty, and so are the tests that use it.
#![cfg(target_os = "linux")]
#![warn(rust_2018_idioms)]
// Every export takes raw handles and pointers as the driver does, and its safety contract is the driver's.
#![allow(clippy::missing_safety_doc)]

mod answers;
mod capture;
mod contexts;
mod control;
mod devices;
mod entry;
mod events;
mod graphs;
mod memory;
mod modules;
mod pinned;
mod queue;
mod state;
mod streams;
mod threads;
mod transfers;
