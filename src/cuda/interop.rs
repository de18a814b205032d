//! The short way for engines on this version of cudarc. It reads from their types and changes nothing about them.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};

use super::raw::{Context, PER_THREAD, RawParts, refuse_capturing};
use super::{CudaError, CudaSource, DeviceCounters, Words};

impl CudaSource {
    /// A source over a slice that is updated on this stream.
    ///
    /// Slice and stream are kept until the source is dropped and its last copy has landed. Nothing is created on the
    /// engine's `CudaContext`, and its event tracking is left as it is; where it is active, the stream waits once for
    /// the slice's last write, and a read is recorded.
    ///
    /// # Errors
    ///
    /// As [`from_raw_parts`](Self::from_raw_parts); [`CudaError::PerThreadStream`] for a per-thread stream.
    pub fn from_cudarc(slice: Arc<CudaSlice<i64>>, stream: Arc<CudaStream>, words: Words) -> Result<Self, CudaError> {
        if stream.cu_stream().addr() == PER_THREAD {
            return Err(CudaError::PerThreadStream);
        }
        let raw = parts(&slice, &stream)?;
        // SAFETY: slice, stream and context live as long as the two that are kept alive.
        unsafe { Self::from_raw_parts(raw, words, Some(Arc::new((slice, stream)))) }
    }

    /// A source over a slice that is updated on the calling thread's per-thread stream, candle's default.
    ///
    /// # Errors
    ///
    /// As [`from_cudarc`](Self::from_cudarc); [`CudaError::Invalid`] for a stream that is no per-thread one.
    pub fn from_cudarc_per_thread(
        slice: Arc<CudaSlice<i64>>,
        stream: Arc<CudaStream>,
        words: Words,
    ) -> Result<Self, CudaError> {
        if stream.cu_stream().addr() != PER_THREAD {
            return Err(CudaError::Invalid("this is no per-thread stream: use the constructor for streams"));
        }
        let raw = parts(&slice, &stream)?;
        // SAFETY: as above, and the stream is the calling thread's.
        unsafe { Self::from_raw_parts_per_thread(raw, words, Some(Arc::new((slice, stream)))) }
    }
}

impl DeviceCounters {
    /// Zeroed counters on a stream of cudarc's; a per-thread stream means the calling thread's.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn from_cudarc(stream: &Arc<CudaStream>, positions: usize) -> Result<Self, CudaError> {
        let (context, ordinal) = (stream.context().cu_ctx().cast(), ordinal(stream)?);
        let handle = stream.cu_stream().cast();
        // SAFETY: the stream and its context live as long as what is kept alive.
        unsafe {
            if stream.cu_stream().addr() == PER_THREAD {
                Self::new_per_thread(context, ordinal, positions, Some(Arc::new(Arc::clone(stream))))
            } else {
                Self::new(handle, context, ordinal, positions, Some(Arc::new(Arc::clone(stream))))
            }
        }
    }
}

fn ordinal(stream: &CudaStream) -> Result<i32, CudaError> {
    i32::try_from(stream.context().ordinal()).map_err(|_| CudaError::Invalid("no ordinal of a device"))
}

fn parts(slice: &CudaSlice<i64>, stream: &CudaStream) -> Result<RawParts, CudaError> {
    let (handle, context, ordinal) = (stream.cu_stream().cast(), stream.context().cu_ctx().cast(), ordinal(stream)?);
    // SAFETY: both handles belong to values that live through this call.
    let held = unsafe { Context::find(handle, context, ordinal) }?;
    // Inside of the brackets the binding that cudarc does finds its context in place, and changes nothing.
    let inside = held.enter()?;
    // SAFETY: the stream belongs to the context. A capture would take up the wait and the record that follow.
    unsafe { refuse_capturing(held.driver, handle, &inside) }?;
    let (device_ptr, read) = slice.device_ptr(stream);
    drop(read);
    inside.leave()?;
    Ok(RawParts { device_ptr, words: slice.len(), stream: handle, context, ordinal })
}
