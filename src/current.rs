//! The step that a thread is in, so that a phase finds its step without asking the registry, which costs more than all
//! else that a phase does.

use std::cell::Cell;

/// A step of some layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Current {
    /// The address of the layer's state: each subscriber on the thread has its own.
    layer: usize,
    id: u64,
    place: u32,
    /// A phase of the step has been entered: what is made inside it is no phase.
    in_phase: bool,
}

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
}

/// The thread has entered a step.
#[inline]
pub(crate) fn enter(layer: usize, id: u64, place: u32) {
    CURRENT.set(Some(Current { layer, id, place, in_phase: false }));
}

/// The thread has exited a step. One around it is not known here any more.
#[inline]
pub(crate) fn exit(layer: usize, id: u64) {
    if CURRENT.get().is_some_and(|current| current.layer == layer && current.id == id) {
        CURRENT.set(None);
    }
}

/// The thread has entered a phase of the step at this place, or exited it.
#[inline]
pub(crate) fn set_in_phase(layer: usize, place: u32, in_phase: bool) {
    if let Some(current) = CURRENT.get()
        && (current.layer, current.place) == (layer, place)
    {
        CURRENT.set(Some(Current { in_phase, ..current }));
    }
}

/// The span id of the step that a span made now on this thread is a phase of; `None` if that is not known here.
#[inline]
pub(crate) fn step(layer: usize) -> Option<u64> {
    CURRENT.get().filter(|current| current.layer == layer && !current.in_phase).map(|current| current.id)
}
