//! Names the shared object as the driver's, and builds the counting kernels for the host.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    // A later `dlopen("libcuda.so")` finds the object by this name once a test has opened it by its path. The file is
    // named otherwise, so that nobody finds it by accident.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    println!("cargo:rerun-if-changed=src/host_kernels.cpp");
    println!("cargo:rerun-if-changed=../src/cuda/count.cu");
    cc::Build::new()
        .cpp(true)
        .cpp_link_stdlib(None)
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .flag_if_supported("-Wno-unknown-pragmas")
        .include("../src/cuda")
        .file("src/host_kernels.cpp")
        .compile("host_kernels");
}
