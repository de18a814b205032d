//! Contexts: primary ones that are counted, others that are created and destroyed, and the stack of each thread.

use std::ffi::{c_int, c_uint};

use crate::answers::{Answer, CAPTURE_UNSUPPORTED, INVALID_CONTEXT, INVALID_VALUE};
use crate::entry::driver;
use crate::state::{Sim, sim};
use crate::streams::{STREAM_KINDS, Stream};
use crate::threads;

pub(crate) struct Context {
    pub(crate) device: c_int,
    /// How often a primary context is retained; others count as one while they live.
    pub(crate) retained: u32,
    pub(crate) primary: bool,
    pub(crate) alive: bool,
    pub(crate) sticky: Option<u32>,
    /// Its legacy default stream.
    pub(crate) legacy: usize,
}

impl Sim {
    fn new_context(&mut self, device: c_int, primary: bool) -> usize {
        let handle = self.handle();
        let legacy = Stream::start(self, handle, STREAM_KINDS.legacy);
        let context = Context { device, retained: 1, primary, alive: true, sticky: None, legacy };
        self.contexts.insert(handle, context);
        handle
    }

    fn primary_of(&self, device: c_int) -> Option<usize> {
        let mut live = self.contexts.iter().filter(|(_, context)| context.primary && context.alive);
        live.find(|(_, context)| context.device == device).map(|(handle, _)| *handle)
    }

    pub(crate) fn live_context(&mut self, handle: usize) -> Answer {
        match self.contexts.get(&handle) {
            Some(context) if context.alive => Ok(()),
            Some(_) => {
                self.misused(format!("context {handle:#x} used after its end"));
                Err(INVALID_CONTEXT)
            }
            None => Err(INVALID_CONTEXT),
        }
    }

    /// What lives in a context ends with it.
    fn end_context(&mut self, handle: usize) {
        if let Some(context) = self.contexts.get_mut(&handle) {
            context.alive = false;
            context.retained = 0;
        }
        self.streams.values_mut().filter(|stream| stream.context == handle).for_each(|stream| stream.alive = false);
        self.events.values_mut().filter(|event| event.context == handle).for_each(|event| event.alive = false);
        self.memory.values_mut().filter(|memory| memory.context == handle).for_each(|memory| memory.alive = false);
    }
}

driver! {
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) {
        let mut sim = sim();
        sim.check_device(device)?;
        let handle = match sim.primary_of(device) {
            Some(handle) => {
                if let Some(context) = sim.contexts.get_mut(&handle) {
                    context.retained += 1;
                }
                handle
            }
            None => sim.new_context(device, true),
        };
        // SAFETY: the caller passes a place for the answer, here and in every function below.
        unsafe { *context = handle };
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let mut sim = sim();
        let handle = sim.primary_of(device).ok_or(INVALID_CONTEXT)?;
        let context = sim.contexts.get_mut(&handle).ok_or(INVALID_CONTEXT)?;
        context.retained -= 1;
        if context.retained == 0 {
            sim.end_context(handle);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) {
        let sim = sim();
        sim.check_device(device)?;
        unsafe {
            *flags = 0;
            *active = c_int::from(sim.primary_of(device).is_some());
        }
        Ok(())
    }

    fn cuCtxCreate_v2(context: *mut usize, _flags: c_uint, device: c_int) {
        let mut sim = sim();
        sim.check_device(device)?;
        let handle = sim.new_context(device, false);
        threads::push(sim.epoch, handle);
        unsafe { *context = handle };
        Ok(())
    }

    fn cuCtxDestroy_v2(context: usize) {
        let mut sim = sim();
        sim.live_context(context)?;
        if sim.contexts.get(&context).is_some_and(|context| context.primary) {
            sim.misused("a primary context destroyed instead of released".into());
            return Err(INVALID_CONTEXT);
        }
        sim.end_context(context);
        if threads::current(sim.epoch) == Some(context) {
            threads::pop(sim.epoch);
        }
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut usize) {
        unsafe { *context = threads::current(sim().epoch).unwrap_or(0) };
        Ok(())
    }

    fn cuCtxSetCurrent(context: usize) {
        let mut sim = sim();
        if context != 0 {
            sim.live_context(context)?;
        }
        threads::set(sim.epoch, Some(context).filter(|context| *context != 0));
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: usize) {
        let mut sim = sim();
        sim.live_context(context)?;
        threads::push(sim.epoch, context);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut usize) {
        let popped = threads::pop(sim().epoch).ok_or(INVALID_CONTEXT)?;
        if !context.is_null() {
            unsafe { *context = popped };
        }
        Ok(())
    }

    fn cuCtxGetDevice(device: *mut c_int) {
        let mut sim = sim();
        let current = sim.current()?;
        let context = sim.contexts.get(&current).ok_or(INVALID_CONTEXT)?;
        unsafe { *device = context.device };
        Ok(())
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        sim().current()?;
        unsafe {
            *least = 0;
            *greatest = -5;
        }
        Ok(())
    }

    fn cuCtxSynchronize() {
        let mut sim = sim();
        let current = sim.current()?;
        // Prohibited in every capture mode, and it breaks the captures of the context.
        let broken = sim.break_captures(|_, capture| capture.context == current);
        if broken {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let streams: Vec<usize> =
            sim.streams.iter().filter(|(_, stream)| stream.context == current).map(|(handle, _)| *handle).collect();
        for stream in streams {
            let last = sim.streams.get(&stream).map_or(0, |stream| stream.submitted);
            sim = crate::queue::wait_for(sim, (stream, last));
            sim.observe((stream, last));
        }
        Ok(())
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        let mut sim = sim();
        // The driver is strict here for a reason: the runtime's form of this call creates a context where none is.
        let current = threads::current(sim.epoch).ok_or(INVALID_CONTEXT)?;
        sim.live_context(current)?;
        let wanted = unsafe { *mode };
        if wanted > threads::RELAXED {
            return Err(INVALID_VALUE);
        }
        unsafe { *mode = threads::exchange_mode(sim.epoch, wanted) };
        Ok(())
    }
}
