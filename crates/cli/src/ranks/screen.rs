//! The terminal of the supervisor, for the progress of the first rank, whose own standard error is a pipe.

use super::system;
use indicatif::{ProgressDrawTarget, TermLike};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

/// Rows and columns where the terminal does not tell.
const WINDOW: (u16, u16) = (24, 80);

/// Frames a second.
const RATE: u8 = 10;

/// A terminal.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: File,
}

impl Screen {
    /// The terminal behind a descriptor.
    pub(super) fn new(terminal: File) -> Self {
        Self { terminal }
    }

    /// As a place to draw on.
    pub(super) fn target(self) -> ProgressDrawTarget {
        ProgressDrawTarget::term_like_with_hz(Box::new(self), RATE)
    }

    /// Writes a control sequence that moves the cursor by `n`, if it is to move.
    fn go(&self, n: usize, letter: char) -> io::Result<()> {
        if n == 0 { Ok(()) } else { self.write_str(&format!("\x1b[{n}{letter}")) }
    }

    fn window(&self) -> (u16, u16) {
        system::window(self.terminal.as_fd()).unwrap_or(WINDOW)
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        self.window().1
    }

    fn height(&self) -> u16 {
        self.window().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.go(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.go(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.go(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.go(n, 'D')
    }

    fn write_line(&self, s: &str) -> io::Result<()> {
        self.write_str(&format!("{s}\n"))
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        (&self.terminal).write_all(s.as_bytes())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.write_str("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        (&self.terminal).flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_drawn_where_the_descriptor_leads() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bar =
            indicatif::ProgressBar::with_draw_target(Some(4), Screen::new(file.reopen().unwrap()).target());
        bar.println("a line above");
        bar.set_position(2);
        bar.abandon();
        let drawn = std::fs::read_to_string(file.path()).unwrap();
        assert!(drawn.contains("a line above") && drawn.contains("2/4"), "{drawn:?}");
    }
}
