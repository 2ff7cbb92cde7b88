//! Files to tokens on all cores: one thread reads, all tokenize, and what they make is written in the order of the
//! files. So neither the result nor which error is reported depends on the number of threads, and no more is in
//! memory than a few pieces a thread.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

use super::{
    manifest::{Recipe, SourceFile},
    writer::Writer,
};
use crate::{
    DataError, Tokenizer,
    source::{self, PIECE, Piece, Stop},
};

/// Batches, for each thread, that are read ahead of what is written.
const AHEAD: u64 = 4;

/// How far preparing has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether another process is preparing the same data, and this one waits for it.
    pub waiting: bool,
    /// Bytes of the files that have been read.
    pub bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
    /// Documents that have been written.
    pub documents: u64,
    /// Tokens that have been written.
    pub tokens: u64,
}

/// Pieces that are tokenized together, or the reason why there are no more.
type Batch = Result<Vec<(usize, Piece)>, DataError>;

/// For each piece its tokens, and whether it ends its document.
type Tokens = Result<Vec<(Vec<u32>, bool)>, DataError>;

/// Tokenizes `files`, which are those of the recipe, into `writer`.
pub(super) fn run(
    files: &[PathBuf],
    recipe: &Recipe,
    tokenizer: &Tokenizer,
    threads: usize,
    writer: &mut Writer,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), DataError> {
    let field = recipe.field.as_deref().unwrap_or_default();
    let read = AtomicU64::new(0);
    let gate = Gate::new(AHEAD * threads as u64);
    let (batches, queue) = mpsc::channel::<(u64, Batch)>();
    let queue = Mutex::new(queue);
    let (results, finished) = mpsc::channel::<(u64, Tokens)>();
    thread::scope(|scope| {
        let (gate, queue, read) = (&gate, &queue, &read);
        scope.spawn(move || {
            let mut reader = Reader { batches, gate, number: 0, held: Vec::new(), bytes: 0 };
            match reader.read(files, &recipe.sources, field, tokenizer, read) {
                Err(Stop::Failed(error)) => reader.send(Err(error)),
                Err(Stop::Unwanted) | Ok(()) => Ok(()),
            }
        });
        for _ in 0..threads {
            let results = results.clone();
            scope.spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((number, batch)) = next else { break };
                    let tokens = batch.and_then(|pieces| tokenize(pieces, files, tokenizer));
                    if gate.closed() || results.send((number, tokens)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(results);
        let written = write(finished, gate, writer, &mut |documents, tokens| {
            let (bytes, total_bytes) = (read.load(Ordering::Relaxed), recipe.bytes());
            progress(Progress { waiting: false, bytes, total_bytes, documents, tokens });
        });
        gate.close();
        written
    })
}

/// Writes what the threads make, in order.
fn write(
    finished: mpsc::Receiver<(u64, Tokens)>,
    gate: &Gate,
    writer: &mut Writer,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), DataError> {
    let mut next = 0;
    let mut early = BTreeMap::new();
    for (number, tokens) in finished {
        early.insert(number, tokens);
        while let Some(tokens) = early.remove(&next) {
            for (tokens, last) in tokens? {
                writer.push(&tokens)?;
                if last {
                    writer.end_document()?;
                }
            }
            next += 1;
            gate.open_to(next);
            let (documents, tokens) = writer.counts();
            progress(documents, tokens);
        }
    }
    Ok(())
}

/// Tokenizes a batch.
fn tokenize(pieces: Vec<(usize, Piece)>, files: &[PathBuf], tokenizer: &Tokenizer) -> Tokens {
    let one = |(file, piece): (usize, Piece)| {
        // A tokenizer.json can ask for what the library does not expect.
        let encoded = catch_unwind(AssertUnwindSafe(|| tokenizer.encode(&piece.text)));
        let tokens = encoded.unwrap_or_else(|_| {
            Err(DataError::Encode { reason: "the tokenizers library failed at it".into() })
        });
        match tokens {
            Ok(tokens) => Ok((tokens, piece.last)),
            Err(DataError::Encode { reason }) => {
                Err(DataError::EncodeFile { path: files[file].clone(), place: piece.place.suffix(), reason })
            }
            Err(other) => Err(other),
        }
    };
    pieces.into_iter().map(one).collect()
}

/// Reads the files and hands out batches.
struct Reader<'a> {
    batches: mpsc::Sender<(u64, Batch)>,
    gate: &'a Gate,
    /// Number of the next batch.
    number: u64,
    held: Vec<(usize, Piece)>,
    bytes: usize,
}

impl Reader<'_> {
    fn read(
        &mut self,
        files: &[PathBuf],
        sources: &[SourceFile],
        field: &str,
        tokenizer: &Tokenizer,
        read: &AtomicU64,
    ) -> Result<(), Stop> {
        for (index, (path, source)) in files.iter().zip(sources).enumerate() {
            source::documents(path, field, tokenizer.cuts(), read, &mut |piece| {
                self.bytes += piece.text.len();
                self.held.push((index, piece));
                // Short documents are many to a batch; so are empty ones, whose number is bounded too.
                if self.bytes < PIECE && self.held.len() < PIECE / 64 {
                    return Ok(());
                }
                self.flush()
            })?;
            // The manifest says which state of each file the tokens are of.
            if SourceFile::new(path)? != *source {
                return Err(DataError::Changed { path: path.clone() }.into());
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Stop> {
        self.bytes = 0;
        let pieces = std::mem::take(&mut self.held);
        self.send(Ok(pieces))
    }

    fn send(&mut self, batch: Batch) -> Result<(), Stop> {
        if !self.gate.pass(self.number) {
            return Err(Stop::Unwanted);
        }
        let sent = self.batches.send((self.number, batch));
        self.number += 1;
        sent.map_err(|_| Stop::Unwanted)
    }
}

/// Holds the reader back, so that a slow batch does not let the ones after it fill the memory.
struct Gate {
    ahead: u64,
    written: Mutex<u64>,
    changed: Condvar,
    closed: AtomicBool,
}

impl Gate {
    fn new(ahead: u64) -> Gate {
        Gate { ahead, written: Mutex::new(0), changed: Condvar::new(), closed: AtomicBool::new(false) }
    }

    /// Waits until a batch is near enough to what is written; false if it is not wanted.
    fn pass(&self, number: u64) -> bool {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.closed() && number >= *written + self.ahead {
            written = self.changed.wait(written).unwrap_or_else(PoisonError::into_inner);
        }
        !self.closed()
    }

    fn open_to(&self, written: u64) {
        *self.written.lock().unwrap_or_else(PoisonError::into_inner) = written;
        self.changed.notify_all();
    }

    /// Lets nothing more through.
    fn close(&self) {
        let _written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        self.closed.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}
