//! A rank's process, as its supervisor has it.

use super::heir::{VARIABLE, Will};
use super::system;
use super::verdict::Ended;
use super::voice::{News, Voice};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

/// A rank's process. It does not outlive this value.
#[derive(Debug)]
pub(super) struct RankProcess {
    rank: usize,
    child: Child,
    status: Option<ExitStatus>,
    voice: Voice,
    log: PathBuf,
}

impl RankProcess {
    /// Starts this program with its own arguments as a rank. What it prints is kept in `log`, and shown with `news`.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn start(will: &Will, log: PathBuf, news: Option<News>) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(&log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(std::env::args_os().skip(1))
            .env(VARIABLE, serde_json::to_string(will)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let descriptors: Vec<RawFd> =
            [will.lock].into_iter().chain(will.terminal).chain(will.files.clone()).collect();
        system::follow(&mut command, descriptors);
        let mut child = command.spawn()?;
        let missing = || io::Error::other("a process without pipes");
        let (out, err) = (child.stdout.take().ok_or_else(missing)?, child.stderr.take().ok_or_else(missing)?);
        Ok(Self { rank: will.rank, child, status: None, voice: Voice::new(out, err, file, news), log })
    }

    /// The rank's number.
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Passes on the wish to stop after a step.
    pub(super) fn ask_to_stop(&mut self) {
        // One that has ended needs no asking.
        if let Some(stdin) = &mut self.child.stdin {
            let _ = stdin.write_all(b"\n").and_then(|()| stdin.flush());
        }
    }

    /// Ends it at once.
    pub(super) fn kill(&mut self) {
        if self.status.is_none() {
            // It may have ended meanwhile.
            let _ = self.child.kill();
        }
    }

    /// How it has ended, and its last words. Waits for its end.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn ended(&mut self) -> io::Result<Ended> {
        let status = match self.status {
            Some(status) => status,
            None => self.child.wait()?,
        };
        self.status = Some(status);
        let words = self.voice.last_words();
        Ok(Ended { rank: self.rank, status, words, log: self.log.clone() })
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}
