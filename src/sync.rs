//! The atomics of what threads share without a lock. The crate `loom/` compiles the same modules with loom's in their
//! place, and runs them in every order.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
