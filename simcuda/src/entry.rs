//! What every driver function does first: it is counted, and may be made to fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::answers::{Answer, DEINITIALIZED, NOT_INITIALIZED, STUB_LIBRARY, UNKNOWN, is_sticky};
use crate::state::{Mode, Sim, sim};
use crate::threads;

/// Defines exported driver functions whose bodies come to an [`Answer`].
macro_rules! driver {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(
            #[allow(non_snake_case, clippy::too_many_arguments)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> u32 {
                $crate::entry::enter(stringify!($name), || -> $crate::answers::Answer { $body })
            }
        )*
    };
}
pub(crate) use driver;

/// An error ordered by a test.
pub(crate) struct Fault {
    pub(crate) function: String,
    pub(crate) code: u32,
    /// Calls of the function to let through first.
    pub(crate) skip: u64,
    pub(crate) times: u64,
}

/// The process that first called, and the calls made in children forked from it.
static OWNER: AtomicU32 = AtomicU32::new(0);
pub(crate) static FORKED_CALLS: AtomicU64 = AtomicU64::new(0);

/// Whether this is a forked child: the workers don't survive a fork, and the lock may have been held by one.
fn is_forked() -> bool {
    let me = std::process::id();
    OWNER.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed).is_err_and(|owner| owner != me)
}

pub(crate) fn enter(name: &'static str, body: impl FnOnce() -> Answer) -> u32 {
    if is_forked() {
        FORKED_CALLS.fetch_add(1, Ordering::Relaxed);
        return NOT_INITIALIZED;
    }
    let refused = {
        let mut sim = sim();
        sim.count(name);
        refusal(&mut sim, name)
    };
    if let Some(code) = refused {
        return code;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

fn refusal(sim: &mut Sim, name: &'static str) -> Option<u32> {
    let harmless = matches!(name, "cuGetErrorString" | "cuGetErrorName" | "cuDriverGetVersion");
    match sim.mode {
        Mode::Deinitialized if !harmless => return Some(DEINITIALIZED),
        Mode::Stub if !harmless => return Some(STUB_LIBRARY),
        _ => {}
    }
    if !sim.initialised && name != "cuInit" && !harmless {
        return Some(NOT_INITIALIZED);
    }
    let fault = sim.faults.iter_mut().find(|fault| fault.function == name && fault.times > 0)?;
    if fault.skip > 0 {
        fault.skip -= 1;
        return None;
    }
    if fault.times != u64::MAX {
        fault.times -= 1;
    }
    let code = fault.code;
    if is_sticky(code)
        && let Some(context) = threads::current(sim.epoch)
        && let Some(context) = sim.contexts.get_mut(&context)
    {
        context.sticky = Some(code);
    }
    Some(code)
}
