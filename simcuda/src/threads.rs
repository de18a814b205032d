//! What belongs to one thread: its context stack, its capture mode, its number.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const GLOBAL: u32 = 0;
pub(crate) const RELAXED: u32 = 2;

#[derive(Default)]
struct Thread {
    /// The reset that this state belongs to: an older one is forgotten.
    epoch: u64,
    stack: Vec<usize>,
    mode: u32,
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::default();
}

static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
}

/// This thread's number, 0 while the thread is being torn down.
pub(crate) fn number() -> u64 {
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

fn with<T: Default>(epoch: u64, f: impl FnOnce(&mut Thread) -> T) -> T {
    THREAD
        .try_with(|thread| {
            let mut thread = thread.borrow_mut();
            if thread.epoch != epoch {
                *thread = Thread { epoch, ..Thread::default() };
            }
            f(&mut thread)
        })
        .unwrap_or_default()
}

pub(crate) fn current(epoch: u64) -> Option<usize> {
    with(epoch, |thread| thread.stack.last().copied())
}

pub(crate) fn push(epoch: u64, context: usize) {
    with(epoch, |thread| thread.stack.push(context));
}

pub(crate) fn pop(epoch: u64) -> Option<usize> {
    with(epoch, |thread| thread.stack.pop())
}

/// As `cuCtxSetCurrent`: the top is replaced, and none pops it.
pub(crate) fn set(epoch: u64, context: Option<usize>) {
    with(epoch, |thread| {
        thread.stack.pop();
        thread.stack.extend(context);
    });
}

pub(crate) fn depth(epoch: u64) -> usize {
    with(epoch, |thread| thread.stack.len())
}

pub(crate) fn mode(epoch: u64) -> u32 {
    with(epoch, |thread| thread.mode)
}

pub(crate) fn exchange_mode(epoch: u64, mode: u32) -> u32 {
    with(epoch, |thread| std::mem::replace(&mut thread.mode, mode))
}
