//! The simulated driver, opened in place of a real one where `--simulate` is among the arguments.

use std::sync::OnceLock;

/// Opens it, if asked. From then on everyone in this process who looks for the driver finds it.
pub(crate) fn open_if_asked() -> Result<(), String> {
    static LIBRARY: OnceLock<libloading::Library> = OnceLock::new();
    if !is_asked() {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let built = program.parent().and_then(|examples| examples.parent()).ok_or("this program has no folder")?;
    let path = built.join("deps").join("libsimcuda.so");
    // SAFETY: the library is this project's own and runs nothing when it is loaded.
    let library = unsafe { libloading::Library::new(&path) }
        .map_err(|error| format!("no simulated driver, which `cargo build -p simcuda` makes: {error}"))?;
    let _ = LIBRARY.set(library);
    Ok(())
}

/// Whether what runs is the simulation.
pub(crate) fn is_asked() -> bool {
    std::env::args().any(|argument| argument == "--simulate")
}
