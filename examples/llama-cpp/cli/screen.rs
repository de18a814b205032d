//! The text as it comes, on stdout, and below it one line of live numbers where a terminal shows it.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

const EVERY: Duration = Duration::from_millis(250);

/// A line below the cursor is made, and the cursor is back where it was.
const ROOM_BELOW: &str = "\x1bD\x1b[A";
const SAVE_AND_GO_BELOW: &str = "\x1b7\x1b[B\r\x1b[K";
const BACK: &str = "\x1b8";
const CLEAR_BELOW: &str = "\x1b[J";
const CLEAR_LINE: &str = "\r\x1b[K";

#[derive(Debug)]
pub(crate) struct Screen {
    shows_text: bool,
    live: Live,
    line: String,
    shown: Option<Instant>,
}

/// Where the live numbers go.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Live {
    /// Below the text, on the same terminal.
    Below,
    /// On stderr, while stdout goes elsewhere or nothing to it.
    Aside,
    Nowhere,
}

impl Screen {
    pub(crate) fn new(shows_text: bool) -> Self {
        let live = match (shows_text && io::stdout().is_terminal(), io::stderr().is_terminal()) {
            (true, _) => Live::Below,
            (false, true) => Live::Aside,
            (false, false) => Live::Nowhere,
        };
        Self { shows_text, live, line: String::new(), shown: None }
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        if !self.shows_text || text.is_empty() {
            return Ok(());
        }
        // A model's text must not steer the terminal.
        let text = text.replace(|char: char| char.is_control() && char != '\n' && char != '\t', " ");
        if self.live == Live::Below { put(&format!("{CLEAR_BELOW}{text}{}", self.below())) } else { put(&text) }
    }

    /// Shows a line of numbers, if it is time for one.
    pub(crate) fn live(&mut self, line: impl FnOnce() -> String) -> Result<()> {
        if self.live == Live::Nowhere || self.shown.is_some_and(|shown| shown.elapsed() < EVERY) {
            return Ok(());
        }
        self.shown = Some(Instant::now());
        self.line = line();
        if self.live == Live::Below {
            return put(&self.below());
        }
        let _ = write!(io::stderr(), "{CLEAR_LINE}{}", self.line);
        Ok(())
    }

    fn below(&self) -> String {
        format!("{ROOM_BELOW}{SAVE_AND_GO_BELOW}{}{BACK}", self.line)
    }

    /// The text is at its end.
    pub(crate) fn end(&self) -> Result<()> {
        if self.live == Live::Aside {
            let _ = write!(io::stderr(), "{CLEAR_LINE}");
        }
        let clear = if self.live == Live::Below { CLEAR_BELOW } else { "" };
        if self.shows_text { put(&format!("{clear}\n")) } else { Ok(()) }
    }
}

/// To stdout; a reader that has seen enough is no error.
pub(crate) fn put(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot write to stdout"),
        _ => Ok(()),
    }
}
