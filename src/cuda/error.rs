//! What can be wrong when a source is made, each with what to do about it.

use std::fmt;

/// Why a CUDA source could not be made, or a step not be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver library on this machine.
    NoDriver,
    /// The library found is a toolkit's stub, made for linking only.
    StubLibrary,
    /// The driver library lacks this function.
    MissingSymbol(&'static str),
    /// The driver is of this CUDA version, as the driver writes it (12 020 is 12.2).
    DriverTooOld(i32),
    /// The driver works and sees no device.
    NoDevice,
    /// The process sees fewer devices than that.
    NoSuchDevice(i32),
    /// The driver can't be initialised, with its code.
    Init(u32),
    /// The engine's stream is being captured into a graph.
    Capturing,
    /// The stream is the per-thread default stream, which needs the constructor made for it.
    PerThreadStream,
    /// Called on another thread than the one whose per-thread stream it is about.
    WrongThread,
    /// The process was forked after the driver had been initialised.
    Forked,
    /// An argument is not what it has to be; says which.
    Invalid(&'static str),
    /// This driver function answered with this code.
    Driver(&'static str, u32),
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => {
                f.write_str("no CUDA driver was found: install NVIDIA's driver, or run without the source")
            }
            Self::StubLibrary => f.write_str(
                "the CUDA library found is a toolkit's stub: take its `stubs` directory out of the library path",
            ),
            Self::MissingSymbol(name) => {
                write!(f, "the CUDA driver has no function `{name}`: update it to CUDA 12.0 or later")
            }
            Self::DriverTooOld(version) => {
                write!(f, "the CUDA driver is of version {version}: update it to CUDA 12.0 (12000) or later")
            }
            Self::NoDevice => {
                f.write_str("the CUDA driver sees no device: check `nvidia-smi`, and what `CUDA_VISIBLE_DEVICES` hides")
            }
            Self::NoSuchDevice(ordinal) => {
                write!(f, "this process sees no device {ordinal}: ordinals count from 0 inside the process")
            }
            Self::Init(code) => {
                write!(f, "the CUDA driver can't be initialised (error {code}): check that the driver fits the kernel")
            }
            Self::Capturing => f.write_str("the engine's stream is being captured: make the source before or after"),
            Self::PerThreadStream => f.write_str(
                "this is the per-thread default stream: use the constructor for it, on the thread that runs the steps",
            ),
            Self::WrongThread => f.write_str("the per-thread stream belongs to another thread: call this on that one"),
            Self::Forked => {
                f.write_str("the process was forked after CUDA was initialised: make the source in the child")
            }
            Self::Invalid(what) => f.write_str(what),
            Self::Driver(function, code) => write!(f, "the driver's `{function}` answered with error {code}"),
        }
    }
}

impl std::error::Error for CudaError {}
