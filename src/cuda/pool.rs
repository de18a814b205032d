//! Kits and blocks that nobody uses: kept for the next source, since making and freeing them may stall a device.
//!
//! Giving back is a send and takes no lock, so that a source can be dropped anywhere. Taking is for those that make a
//! source. Only what lives in a primary context is kept, which can be held; the handle of another context may name a
//! new one some day.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};

use super::block::Memory;
use super::guard::Guard;
use super::kit::Kit;
use super::raw::Context;

enum Returned {
    Kit(Kit),
    Block(Memory),
}

impl Returned {
    fn context(&self) -> &Context {
        match self {
            Self::Kit(kit) => &kit.context,
            Self::Block(memory) => &memory.context,
        }
    }
}

struct Pool {
    give: Sender<Returned>,
    unused: Mutex<Unused>,
}

struct Unused {
    given: Receiver<Returned>,
    kept: Vec<Returned>,
}

static POOL: LazyLock<Pool> = LazyLock::new(|| {
    let (give, given) = channel();
    Pool { give, unused: Mutex::new(Unused { given, kept: Vec::new() }) }
});

impl Unused {
    fn collect(&mut self) {
        self.kept.extend(self.given.try_iter());
    }
}

/// A kit of this context with room for so many words, if one is unused and its last copy has landed.
pub(super) fn take(context: &Context, words: usize, inside: &Guard) -> Option<Kit> {
    let mut unused = POOL.unused.lock().unwrap_or_else(PoisonError::into_inner);
    unused.collect();
    let fits = unused.kept.iter_mut().position(|returned| match returned {
        Returned::Kit(kit) => kit.context.handle == context.handle && kit.words >= words && kit.settle(inside),
        Returned::Block(_) => false,
    })?;
    let returned = unused.kept.swap_remove(fits);
    // What was kept alive belongs to the engine: its drop may do anything, but not under our lock.
    drop(unused);
    match returned {
        Returned::Kit(mut kit) => {
            kit.keep_alive = None;
            Some(kit)
        }
        Returned::Block(_) => None,
    }
}

/// Frees the blocks of this context that nobody has any more: for those that are about to make another.
pub(super) fn free_blocks(context: &Context, inside: &Guard) {
    let mut unused = POOL.unused.lock().unwrap_or_else(PoisonError::into_inner);
    unused.collect();
    for returned in std::mem::take(&mut unused.kept) {
        match returned {
            Returned::Block(memory) if memory.context.handle == context.handle && memory.is_settled(inside) => {
                memory.destroy(inside);
            }
            other => unused.kept.push(other),
        }
    }
}

pub(super) fn give_back_kit(kit: Kit) {
    give_back(Returned::Kit(kit));
}

pub(super) fn give_back_block(memory: Memory) {
    give_back(Returned::Block(memory));
}

fn give_back(returned: Returned) {
    if returned.context().driver.is_forked() {
        // The child's copy of it: neither to be freed nor to be used here.
        std::mem::forget(returned);
    } else if returned.context().is_held() {
        let _ = POOL.give.send(returned);
    } else if let Some(stays) = destroy(returned) {
        // Still in use on the device: left to the end of its context, on purpose.
        std::mem::forget(stays);
    }
}

/// Frees it, or hands it back where a copy may still be under way or its context can't be entered.
fn destroy(returned: Returned) -> Option<Returned> {
    let context = returned.context().clone();
    if context.driver.is_forked() {
        return Some(returned);
    }
    let Ok(inside) = context.enter() else { return Some(returned) };
    match returned {
        Returned::Kit(mut kit) => {
            if !kit.settle(&inside) {
                return Some(Returned::Kit(kit));
            }
            // The owner's own drop may bind its context: inside of the brackets that changes nothing.
            kit.keep_alive = None;
            kit.destroy(&inside);
        }
        Returned::Block(memory) if memory.is_settled(&inside) => memory.destroy(&inside),
        Returned::Block(memory) => return Some(Returned::Block(memory)),
    }
    None
}

/// Gives back to the driver what dropped sources left for the next ones, and lets go of the primary contexts that they
/// held. Returns how many have to stay, because a copy of theirs has not landed or the driver refuses.
///
/// Freeing may wait for the device: this is for an engine's own teardown, not for its decode loop.
pub fn release_unused() -> usize {
    let mut stays = Vec::new();
    loop {
        let given = {
            let mut unused = POOL.unused.lock().unwrap_or_else(PoisonError::into_inner);
            unused.collect();
            std::mem::take(&mut unused.kept)
        };
        if given.is_empty() {
            break;
        }
        // Freeing a kit may give back the block that its copy was of, so there is another look.
        stays.extend(given.into_iter().filter_map(destroy));
    }
    let count = stays.len();
    POOL.unused.lock().unwrap_or_else(PoisonError::into_inner).kept.extend(stays);
    count
}
