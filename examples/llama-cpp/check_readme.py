"""The README's difference is the whole difference: taken back, an engine without the crate is left, and it builds."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
MAX_LINES = 30


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (HERE / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def check_size(difference, set_up):
    added = [line for line in difference.splitlines() if re.match(r"[+-](?!\+\+|--)", line)]
    lines = len(added) + len(set_up.splitlines())
    if lines >= MAX_LINES:
        sys.exit(f"the difference has {lines} lines, {MAX_LINES} are too many")
    return lines


def check_set_up(set_up):
    program = " ".join((HERE / "cli/main.rs").read_text().split())
    for part in set_up.split("\n\n"):
        if " ".join(part.split()) not in program:
            sys.exit(f"not in cli/main.rs:\n{part}")


def check_rest(difference):
    """Takes the difference back in a copy, and builds what is left."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copytree(HERE / "src", folder / "src")
        for name in "Cargo.toml", "Cargo.lock":
            shutil.copy(HERE / name, folder)
        subprocess.run(["patch", "--reverse", "--strip=1", "--fuzz=0", "--quiet"], input=difference, text=True,
                       cwd=folder, check=True)
        # Only the library is left to build.
        manifest = folder / "Cargo.toml"
        library = re.sub(r"\[\[(bin|bench)\]\]\n(?:.+\n)*", "", manifest.read_text())
        manifest.write_text(library.replace("[lints.rust]\n", '[lints.rust]\nwarnings = "deny"\n'))
        for path in [manifest, *folder.glob("src/*.rs")]:
            if re.search(r"tracing.spec.decode::|^tracing-spec-decode|step_span", path.read_text(), re.MULTILINE):
                sys.exit(f"the difference leaves some of the crate in {path.name}")
        subprocess.run(["cargo", "check", "--release", "--offline", "--lib", "--quiet"], cwd=folder, check=True)



difference, = blocks("diff")
set_up, = blocks("rust")
lines = check_size(difference, set_up)
check_set_up(set_up)
check_rest(difference)
print(f"the README's difference is the whole difference: {lines} lines")
