//! The one state of the simulated driver, behind one lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::answers::{Answer, CONTEXT_IS_DESTROYED, INVALID_CONTEXT};
use crate::capture::Capture;
use crate::contexts::Context;
use crate::entry::Fault;
use crate::events::Event;
use crate::graphs::Graph;
use crate::memory::Allocation;
use crate::modules::{Function, Module};
use crate::streams::Stream;
use crate::threads;

/// What the library as a whole pretends to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Working,
    /// The process is being torn down: every call answers 4.
    Deinitialized,
    /// A toolkit's stub: every call answers 34.
    Stub,
}

pub(crate) struct Sim {
    /// Raised by each reset; what threads keep of an older epoch is void.
    pub(crate) epoch: u64,
    pub(crate) initialised: bool,
    pub(crate) mode: Mode,
    pub(crate) devices: i32,
    pub(crate) version: i32,
    pub(crate) memory_pools: bool,
    /// Even an asynchronous copy counts as unsafe while another thread captures globally.
    pub(crate) strict: bool,
    /// Pinned memory can't be touched from its copy's start until an event or a synchronisation has said that it landed.
    pub(crate) guard_pinned: bool,
    pub(crate) contexts: HashMap<usize, Context>,
    pub(crate) streams: HashMap<usize, Stream>,
    pub(crate) events: HashMap<usize, Event>,
    pub(crate) captures: HashMap<usize, Capture>,
    pub(crate) graphs: HashMap<usize, Graph>,
    pub(crate) modules: HashMap<usize, Module>,
    pub(crate) functions: HashMap<usize, Function>,
    pub(crate) memory: BTreeMap<usize, Allocation>,
    pub(crate) faults: Vec<Fault>,
    /// Classes of work held back, per stream; 0 is every stream.
    pub(crate) holds: HashMap<usize, u32>,
    /// Operations that may pass a hold, per stream.
    pub(crate) passes: HashMap<usize, u32>,
    /// What an operation of a class takes, in nanoseconds of the simulated clock; nothing where none is set.
    pub(crate) costs: HashMap<u32, u64>,
    pub(crate) calls: HashMap<(u64, &'static str), u64>,
    pub(crate) log: Option<Vec<(u64, &'static str)>>,
    pub(crate) misuse: Vec<String>,
    pub(crate) pageable_copies: u64,
    next_handle: usize,
}

static SIM: LazyLock<Mutex<Sim>> = LazyLock::new(|| Mutex::new(Sim::new(1, 0x5100_0000)));
/// Rung at every change that somebody may be waiting for.
pub(crate) static CHANGED: Condvar = Condvar::new();

pub(crate) fn sim() -> MutexGuard<'static, Sim> {
    SIM.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn wait(sim: MutexGuard<'static, Sim>) -> MutexGuard<'static, Sim> {
    CHANGED.wait(sim).unwrap_or_else(PoisonError::into_inner)
}

impl Sim {
    pub(crate) fn new(epoch: u64, next_handle: usize) -> Self {
        Self {
            epoch,
            initialised: false,
            mode: Mode::Working,
            devices: 1,
            version: 12080,
            memory_pools: true,
            strict: false,
            guard_pinned: false,
            contexts: HashMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            captures: HashMap::new(),
            graphs: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            memory: BTreeMap::new(),
            faults: Vec::new(),
            holds: HashMap::new(),
            passes: HashMap::new(),
            costs: HashMap::new(),
            calls: HashMap::new(),
            log: None,
            misuse: Vec::new(),
            pageable_copies: 0,
            next_handle,
        }
    }

    /// A driver as freshly loaded. Handles are never given twice, so those from before stay unknown for good.
    pub(crate) fn renewed(&self) -> Self {
        Self::new(self.epoch + 1, self.next_handle)
    }

    pub(crate) fn handle(&mut self) -> usize {
        self.next_handle += 0x10;
        self.next_handle
    }

    pub(crate) fn count(&mut self, name: &'static str) {
        let thread = threads::number();
        *self.calls.entry((thread, name)).or_default() += 1;
        if let Some(log) = &mut self.log {
            log.push((thread, name));
        }
    }

    pub(crate) fn misused(&mut self, what: String) {
        self.misuse.push(what);
    }

    /// The context that is current on this thread, in working order.
    pub(crate) fn current(&mut self) -> Answer<usize> {
        let handle = threads::current(self.epoch).ok_or(INVALID_CONTEXT)?;
        let context = self.contexts.get(&handle).ok_or(INVALID_CONTEXT)?;
        if !context.alive {
            return Err(CONTEXT_IS_DESTROYED);
        }
        context.sticky.map_or(Ok(handle), Err)
    }
}
