//! Large copies keep the copy engine busy: sampling must not make a step wait for them, as a synchronous copy does.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::result;
use serde_json::json;
use tracing_spec_decode::cuda::DeviceCounters;
use tracing_spec_decode::source::{CounterSource, Counters, Snapshot};

use crate::amounts::{Amounts, Outcome};
use crate::engine::{Batch, K, Random, stream};
use crate::timing::Times;

pub(crate) fn check(amounts: Amounts) -> Outcome {
    let sampled = stream()?;
    let counters = DeviceCounters::from_cudarc(&sampled, K)?;
    let mut source = counters.source()?;
    let batch = Batch::random(&sampled, &mut Random::new(4))?;
    let other = stream()?;
    let large = other.alloc_zeros::<u8>(amounts.transfer_bytes)?;
    // SAFETY: the memory is freed below, after the stream that copies into it was waited for.
    let pinned = unsafe { result::malloc_host(amounts.transfer_bytes, 0) }? as usize;
    sampled.synchronize()?;
    other.synchronize()?;
    let over = AtomicBool::new(false);
    let steps = (amounts.samples / 10).max(100);
    let mut ours = Times::default();
    let mut naive = Times::default();
    let outcome = std::thread::scope(|scope| {
        let copying = scope.spawn(|| -> Result<usize, cudarc::driver::DriverError> {
            let mut copies = 0;
            while !over.load(Ordering::Relaxed) {
                for _ in 0..4 {
                    use cudarc::driver::DevicePtr;
                    let (from, _read) = large.device_ptr(&other);
                    other.context().bind_to_thread()?;
                    // SAFETY: the pinned block and the slice have so many bytes.
                    let code = unsafe {
                        cudarc::driver::sys::cuMemcpyDtoHAsync_v2(
                            pinned as *mut _,
                            from,
                            amounts.transfer_bytes,
                            other.cu_stream(),
                        )
                    };
                    code.result()?;
                    copies += 1;
                }
                other.synchronize()?;
            }
            Ok(copies)
        });
        let mut sample = || -> Result<u64, String> {
            let text = |error: &dyn std::fmt::Display| error.to_string();
            let mut read = Counters::for_layout(source.layout());
            let (mut landed, mut in_flight) = (0, false);
            for _ in 0..steps {
                batch.count(&counters, 2).map_err(|error| text(&error))?;
                ours.take(|| -> Result<(), String> {
                    if in_flight && source.poll(&mut read).map_err(|error| text(&error))? == Snapshot::Landed {
                        (landed, in_flight) = (landed + 1, false);
                    }
                    if !in_flight {
                        source.start().map_err(|error| text(&error))?;
                        in_flight = true;
                    }
                    Ok(())
                })?;
            }
            for _ in 0..steps.min(200) {
                batch.count(&counters, 2).map_err(|error| text(&error))?;
                let mut words = [0i64; 4];
                naive
                    .take(|| {
                        sampled.context().bind_to_thread()?;
                        // SAFETY: the block has more than four words.
                        unsafe { result::memcpy_dtoh_async(&mut words, counters.device_ptr(), sampled.cu_stream()) }?;
                        sampled.synchronize()
                    })
                    .map_err(|error| text(&error))?;
            }
            Ok(landed)
        };
        let sampled = sample();
        over.store(true, Ordering::Relaxed);
        (copying.join(), sampled)
    });
    other.synchronize()?;
    // SAFETY: allocated above, and no copy into it is left.
    unsafe { result::free_host(pinned as *mut _) }?;
    let copies = outcome.0.map_err(|_| "the copying thread panicked")??;
    Ok(json!({
        "large_copies": copies,
        "bytes_each": amounts.transfer_bytes,
        "samples_landed": outcome.1?,
        "poll_and_start": ours.json(),
        "synchronous_copy_instead": naive.json(),
    }))
}
