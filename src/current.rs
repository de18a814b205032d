//! The step that a thread is in, so that a phase finds its step without asking the registry, which costs more than all
//! else that a phase does.

use std::cell::Cell;

/// A step of some layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Current {
    /// The address of the layer's state: each subscriber on the thread has its own.
    layer: usize,
    id: u64,
    /// How many phases of the step have been entered and not exited: what is made inside them is no phase.
    in_phases: u32,
}

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
}

/// The thread has entered a step.
#[inline]
pub(crate) fn enter(layer: usize, id: u64) {
    CURRENT.set(Some(Current { layer, id, in_phases: 0 }));
}

/// The thread has exited a step. One around it is not known here any more.
#[inline]
pub(crate) fn exit(layer: usize, id: u64) {
    if CURRENT.get().is_some_and(|current| current.layer == layer && current.id == id) {
        CURRENT.set(None);
    }
}

/// The thread has entered a phase of the step with this span id. That of another step hides the thread's own.
#[inline]
pub(crate) fn enter_phase(layer: usize, step: u64) {
    let own = CURRENT.get().filter(|current| (current.layer, current.id) == (layer, step));
    CURRENT.set(own.map(|current| Current { in_phases: current.in_phases.saturating_add(1), ..current }));
}

/// The thread has exited a phase of the step with this span id.
#[inline]
pub(crate) fn exit_phase(layer: usize, step: u64) {
    let own = CURRENT.get().filter(|current| (current.layer, current.id) == (layer, step));
    if let Some(current) = own {
        CURRENT.set(Some(Current { in_phases: current.in_phases.saturating_sub(1), ..current }));
    }
}

/// The thread has entered a span of ours that is not counted: what is made inside it has to be looked up.
#[inline]
pub(crate) fn forget() {
    CURRENT.set(None);
}

/// The span id of the step that a span made now on this thread is a phase of; `None` if that is not known here.
#[inline]
pub(crate) fn step(layer: usize) -> Option<u64> {
    CURRENT.get().filter(|current| current.layer == layer && current.in_phases == 0).map(|current| current.id)
}
