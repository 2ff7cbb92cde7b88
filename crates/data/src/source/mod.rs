//! The documents of a file: of text, JSON Lines or Parquet, packed or not. A file is streamed: no more of it is
//! in memory than a few pieces, however long it is.

mod jsonl;
mod parquet;
mod text;
mod unpack;

#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::BufReader,
    panic,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{DataError, tokenizer::Cuts};

/// About how many bytes of text are tokenized at once: small enough that every core gets some of a document of
/// a few megabytes, large enough that handing it over costs nothing.
pub(crate) const PIECE: usize = 256 * 1024;

/// A part of a document, as much as is tokenized at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The text.
    pub(crate) text: String,
    /// Whether the document ends with it.
    pub(crate) last: bool,
    /// Where the document begins.
    pub(crate) place: Place,
}

/// Where a document begins within its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is the file.
    File,
    /// A line, counted from 1.
    Line(u64),
    /// A row, counted from 1.
    Row(u64),
}

impl Place {
    /// As it follows the name of the file in a message.
    pub(crate) fn suffix(self) -> String {
        match self {
            Place::File => String::new(),
            Place::Line(line) => format!(", line {line}"),
            Place::Row(row) => format!(", row {row}"),
        }
    }
}

/// Why reading ended before the file did.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The file is at fault.
    Failed(DataError),
    /// Nobody wants more.
    Unwanted,
}

impl From<DataError> for Stop {
    fn from(error: DataError) -> Stop {
        Stop::Failed(error)
    }
}

/// Takes the pieces one after another.
pub(crate) type Emit<'a> = &'a mut dyn FnMut(Piece) -> Result<(), Stop>;

/// Whether documents of this file are found in a named field.
pub(crate) fn has_fields(path: &Path) -> bool {
    !matches!(Format::of(path).0, Records::Text)
}

/// Hands the documents of a file to `emit`, in pieces that `cuts` allows. Every document ends with a piece that
/// says so, an empty one too. `read` counts the bytes of the file that have been read.
pub(crate) fn documents(
    path: &Path,
    field: &str,
    cuts: Cuts,
    read: &AtomicU64,
    emit: Emit<'_>,
) -> Result<(), Stop> {
    let unreadable = |reason| DataError::Unreadable { path: path.to_path_buf(), reason };
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    // A pipe would be read once and be gone: what was made from it could not be told from what it holds now.
    if !metadata.is_file() {
        return Err(unreadable(std::io::Error::other("it is not a regular file")).into());
    }
    let start = read.load(Ordering::Relaxed);
    let (records, packing) = Format::of(path);
    match records {
        Records::Parquet => {
            // The crate that reads it is careful with damaged files, but gives no promise.
            let reading = panic::AssertUnwindSafe(|| parquet::documents(path, file, field, cuts, read, emit));
            panic::catch_unwind(reading).unwrap_or_else(|_| {
                let reason = "it is damaged in a way that its reader does not know".into();
                Err(DataError::Parquet { path: path.to_path_buf(), reason }.into())
            })?;
        }
        Records::Text | Records::JsonLines => {
            let mut reader = BufReader::with_capacity(64 * 1024, unpack::open(file, packing, read));
            let failed = |reason: std::io::Error| match packing {
                Packing::None => DataError::Unreadable { path: path.to_path_buf(), reason },
                _ => DataError::Unpack { path: path.to_path_buf(), packing: packing.name(), reason },
            };
            if let Records::Text = records {
                text::document(path, &mut reader, cuts, &failed, emit)?;
            } else {
                jsonl::documents(path, &mut reader, field, cuts, &failed, emit)?;
            }
        }
    }
    read.store(start + metadata.len(), Ordering::Relaxed);
    Ok(())
}

/// What the records of a file are.
#[derive(Debug, Clone, Copy)]
enum Records {
    Text,
    JsonLines,
    Parquet,
}

/// How a file is packed.
#[derive(Debug, Clone, Copy)]
enum Packing {
    None,
    Gzip,
    Zstandard,
}

impl Packing {
    fn name(self) -> &'static str {
        match self {
            Packing::None => "plain",
            Packing::Gzip => "gzip",
            Packing::Zstandard => "zstd",
        }
    }
}

/// The format that the ending of a name stands for.
struct Format;

impl Format {
    fn of(path: &Path) -> (Records, Packing) {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let (name, packing) = if let Some(name) = name.strip_suffix(".gz") {
            (name, Packing::Gzip)
        } else if let Some(name) = name.strip_suffix(".zst") {
            (name, Packing::Zstandard)
        } else {
            (name.as_str(), Packing::None)
        };
        let records = match name.rsplit_once('.').map(|(_, ending)| ending) {
            Some("jsonl" | "ndjson") => Records::JsonLines,
            // Parquet packs its own pages; a packed Parquet file is refused as text that is not UTF-8.
            Some("parquet") if matches!(packing, Packing::None) => Records::Parquet,
            _ => Records::Text,
        };
        (records, packing)
    }
}

/// Hands a whole document to `emit` in pieces.
fn in_pieces(mut text: String, place: Place, cuts: Cuts, emit: Emit<'_>) -> Result<(), Stop> {
    while text.len() > 2 * PIECE {
        let Some(cut) = cuts.after(&text, PIECE) else { break };
        let rest = text.split_off(cut);
        emit(Piece { text: std::mem::replace(&mut text, rest), last: false, place })?;
    }
    emit(Piece { text, last: true, place })
}

/// The fields that there are, for a message; long lists are cut.
fn fields(names: impl Iterator<Item = impl AsRef<str>>) -> String {
    const MOST: usize = 20;
    let mut names: Vec<String> = names.take(MOST + 1).map(|name| format!("{:?}", name.as_ref())).collect();
    if names.is_empty() {
        return "it has no fields".into();
    }
    if names.len() > MOST {
        names[MOST] = "...".into();
    }
    format!("the fields are {}", names.join(", "))
}
