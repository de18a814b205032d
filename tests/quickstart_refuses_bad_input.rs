//! What is wrong on the quickstart's command line, or with its text, is said in one line.

#[path = "../examples/quickstart/options.rs"]
mod options;
#[path = "../examples/quickstart/text.rs"]
mod text;

use std::path::{Path, PathBuf};
use std::time::Duration;

use options::{Command, MAX_SPEC_TOKENS, Options, parse};

fn accepted(arguments: &[&str]) -> Options {
    match parse(arguments) {
        Ok(Command::Decode(options)) => options,
        other => panic!("{arguments:?} gave {other:?}"),
    }
}

#[track_caller]
fn refused(arguments: &[&str], expected: &str) {
    match parse(arguments) {
        Err(message) => {
            assert!(message.contains(expected), "{arguments:?} gave {message:?}");
            assert_eq!(message.lines().count(), 1, "{message:?}");
        }
        Ok(command) => panic!("{arguments:?} gave {command:?}"),
    }
}

#[test]
fn every_option_is_read() {
    assert_eq!(accepted(&[]), Options::default());
    let all = "--steps 7 --num-spec-tokens=0 --batch 64 --seed 18446744073709551615 --text notes.txt --interval 0.25 \
               --serve 127.0.0.1:9464 --json --draft-pass 3 --target-pass 0";
    let expected = Options {
        sweep: Vec::new(),
        draft_pass: Duration::from_micros(3),
        target_pass: Duration::ZERO,
        steps: 7,
        num_spec_tokens: 0,
        batch: 64,
        seed: u64::MAX,
        text: Some(PathBuf::from("notes.txt")),
        interval: Duration::from_millis(250),
        serve: Some(([127, 0, 0, 1], 9464).into()),
        json: true,
    };
    assert_eq!(accepted(&all.split_whitespace().collect::<Vec<_>>()), expected);
    let sweep = accepted(&["--sweep", "0, 16,4", "--draft-pass", "0"]);
    assert_eq!((sweep.sweep, sweep.draft_pass, sweep.steps), (vec![0, 16, 4], Duration::ZERO, 400));
    assert_eq!(accepted(&["--num-spec-tokens", "16"]).num_spec_tokens as u64, MAX_SPEC_TOKENS);
    assert!(matches!(parse(["--steps", "1", "--help"]), Ok(Command::Help)));
    assert!(matches!(parse(["-h"]), Ok(Command::Help)));
}

#[test]
fn the_help_names_every_option() {
    let options = ["steps", "num-spec-tokens", "batch", "seed", "text", "interval", "serve", "json", "help"];
    for option in options.into_iter().chain(["sweep", "draft-pass", "target-pass"]) {
        assert!(options::HELP.contains(&format!("--{option} ")), "{option}");
    }
    assert!(options::HELP.contains(&format!("0 to {MAX_SPEC_TOKENS}")));
}

#[test]
fn unknown_missing_and_repeated_arguments_are_refused() {
    refused(&["--frobnicate"], "--frobnicate");
    refused(&["-x"], "-x");
    refused(&["extra"], "extra");
    refused(&["--two\nlines"], "--two lines");
    refused(&["--steps"], "--steps");
    refused(&["--text"], "--text");
    refused(&["--json=yes"], "--json");
    refused(&["--steps", "5", "--steps", "6"], "--steps is given twice");
    refused(&["--json", "--json"], "--json is given twice");
}

#[test]
fn a_sweep_has_different_values_of_k_and_no_other() {
    for bad in ["", "x", "1,", "-1", "17", "1,2,1", "0.5"] {
        refused(&["--sweep", bad], "--sweep takes different whole numbers from 0 to 16");
    }
    refused(&["--sweep", "1,2", "--num-spec-tokens", "3"], "--num-spec-tokens can't be given as well");
    refused(&["--draft-pass", "-1"], "--draft-pass takes a whole number from 0 to 1000000");
}

#[test]
fn numbers_out_of_range_are_refused() {
    for bad in ["0", "-5", "1.5", "", " 1", "many", "0x10", "1e3", "99999999999999999999999", "1\n2"] {
        refused(&["--steps", bad], "--steps takes a whole number");
        refused(&["--batch", bad], "--batch takes a whole number");
    }
    refused(&["--batch", "1025"], "1 to 1024");
    for bad in ["17", "-1", "4.0", "four", "99999999999999999999999"] {
        refused(&["--num-spec-tokens", bad], "0 to 16");
    }
    for bad in ["-1", "18446744073709551616", "seed"] {
        refused(&["--seed", bad], "--seed takes a whole number");
    }
}

#[test]
fn bad_intervals_and_addresses_are_refused() {
    for bad in ["0", "-1", "nan", "inf", "-inf", "1e-30", "1e300", "3601", "soon", "", "5s"] {
        refused(&["--interval", bad], "--interval takes seconds");
    }
    for bad in ["", "9464", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:http", "1.2.3.4:5:6"] {
        refused(&["--serve", bad], "--serve takes an address and a port");
    }
}

#[cfg(unix)]
#[test]
fn arguments_that_are_not_unicode_are_refused_or_taken_as_a_path() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let broken = OsStr::from_bytes(b"\xff\xfe");
    for option in ["--steps", "--interval", "--serve"] {
        let message = parse([OsStr::new(option), broken]).expect_err("not a number");
        assert!(message.contains("not UTF-8"), "{message}");
    }
    assert!(parse([broken]).is_err());
    assert!(parse([OsStr::new("--text"), broken]).is_ok());
}

#[test]
fn a_text_that_no_model_can_be_made_from_is_refused() {
    let folder = std::env::temp_dir().join(format!("quickstart-text-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let refused = |name: &str, bytes: &[u8], expected: &str| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).expect("a file");
        let message = text::read(Some(&path)).expect_err(name);
        assert!(message.contains(expected) && message.lines().count() == 1, "{message:?}");
    };
    refused("empty", b"", "0 bytes are too few");
    refused("small", &[b'a'; 999], "999 bytes are too few");
    refused("binary", &[0; 4096], "binary");
    refused("latin1", &[0xe4; 4096], "binary");
    refused("large", &vec![b'a'; (8 << 20) + 1], "larger than 8 MiB");
    let good = folder.join("good");
    std::fs::write(&good, "word ".repeat(200)).expect("a file");
    assert_eq!(text::read(Some(&good)).map(|text| text.len()), Ok(1_000));
    for unreadable in [folder.join("absent\nfile"), folder.clone()] {
        let message = text::read(Some(&unreadable)).expect_err("unreadable");
        assert!(message.starts_with("cannot read") && message.lines().count() == 1, "{message:?}");
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn without_a_file_the_example_reads_itself() {
    let own = text::read(None::<&Path>).expect("its own source");
    assert!(own.len() > 20_000 && own.starts_with(b"//!"));
}
