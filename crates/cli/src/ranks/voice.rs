//! What a rank prints: kept in its log, the last lines remembered, and shown to the user where it is the first rank's.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Lines that are remembered.
const LAST: usize = 20;

/// Bytes of a line that are taken at a time: a rank must not fill the supervisor's memory.
const PIECE: u64 = 1 << 16;

type Lines = Arc<Mutex<VecDeque<String>>>;

/// Hears a rank until it has closed its standard output and its standard error.
#[derive(Debug)]
pub(super) struct Voice {
    threads: Vec<JoinHandle<()>>,
    last: Lines,
}

/// Where lines go besides the log.
struct Ear {
    /// The user's, as long as what is printed is news: once a rank has failed, what the others say of it is not.
    shown: Option<(Box<dyn Write + Send>, News)>,
    /// What is remembered of standard error.
    last: Option<Lines>,
}

/// Whether what a rank prints is still to be shown.
pub(super) type News = Arc<dyn Fn() -> bool + Send + Sync>;

impl Voice {
    /// Hears a rank's standard output and error. With `news` both are shown.
    pub(super) fn new(
        out: impl Read + Send + 'static,
        err: impl Read + Send + 'static,
        log: File,
        news: Option<News>,
    ) -> Self {
        let (log, last) = (Arc::new(Mutex::new(log)), Lines::default());
        let shown = |to: Box<dyn Write + Send>| Some((to, news.clone()?));
        let ears = [
            Ear { shown: shown(Box::new(std::io::stdout())), last: None },
            Ear { shown: shown(Box::new(std::io::stderr())), last: Some(last.clone()) },
        ];
        let [out_ear, err_ear] = ears;
        let own = log.clone();
        let threads = vec![
            std::thread::spawn(move || hear(out, out_ear, &own)),
            std::thread::spawn(move || hear(err, err_ear, &log)),
        ];
        Self { threads, last }
    }

    /// The last lines of standard error, once the rank has ended.
    pub(super) fn last_words(&mut self) -> Vec<String> {
        for thread in self.threads.drain(..) {
            // A thread that hears panics at nothing; if it did, what it has heard is all there is.
            let _ = thread.join();
        }
        self.last.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

fn hear(source: impl Read, mut ear: Ear, log: &Mutex<File>) {
    let mut source = BufReader::new(source);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A pipe that cannot be read has ended for us.
        if (&mut source).take(PIECE).read_until(b'\n', &mut line).unwrap_or(0) == 0 {
            return;
        }
        // Neither a full disk nor a reader that has gone ends a run.
        let _ = log.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
        if let Some((to, news)) = &mut ear.shown
            && news()
        {
            let _ = to.write_all(&line).and_then(|()| to.flush());
        }
        if let Some(last) = &ear.last {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.len() == LAST {
                last.pop_front();
            }
            last.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_everything_and_the_last_lines_of_errors_are_remembered() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let errors: String = (0..50).map(|i| format!("error {i}\n")).collect::<String>() + "cut off";
        let long = vec![b'x'; 3 * PIECE as usize];
        let mut voice = Voice::new(
            std::io::Cursor::new(long),
            std::io::Cursor::new(errors),
            file.reopen().unwrap(),
            None,
        );
        let words = voice.last_words();
        assert_eq!(words.len(), LAST);
        assert_eq!(
            (words[0].as_str(), words[18].as_str(), words[19].as_str()),
            ("error 31", "error 49", "cut off")
        );
        let log = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(log.matches('x').count(), 3 * PIECE as usize);
        assert_eq!(log.matches("error").count(), 50);
    }
}
