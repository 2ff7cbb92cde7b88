//! Files that are packed with gzip or zstd, as a stream of what they hold.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    sync::atomic::{AtomicU64, Ordering},
};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{
    BlockDecodingStrategy, FrameDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};

use super::Packing;

/// The most that a zstd stream may refer back, in bytes: what `zstd --ultra -22` makes.
const WINDOW: u64 = 128 << 20;

/// The content of a file.
pub(super) fn open<'a>(file: File, packing: Packing, read: &'a AtomicU64) -> Box<dyn Read + 'a> {
    let file = Counted { file, read };
    match packing {
        Packing::None => Box::new(file),
        Packing::Gzip => Box::new(MultiGzDecoder::new(BufReader::with_capacity(64 * 1024, file))),
        Packing::Zstandard => Box::new(Frames::new(BufReader::with_capacity(64 * 1024, file))),
    }
}

/// A file whose bytes are counted as they are read.
struct Counted<'a> {
    file: File,
    read: &'a AtomicU64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Zstd frames one after another; the decoder knows of one.
struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    /// Whether a frame has begun and not ended.
    within: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(source: R) -> Frames<R> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW);
        Frames { source, decoder, within: false }
    }

    /// Begins the next frame; false at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.init(&mut self.source) {
                Ok(()) => {
                    self.within = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    if io::copy(&mut (&mut self.source).take(length), &mut io::sink())? < length {
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ends within a frame"));
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    /// Ends a frame that has been read to its end.
    fn end(&mut self) -> io::Result<()> {
        self.within = false;
        let stored = self.decoder.get_checksum_from_data();
        if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a checksum does not agree with its frame",
            ));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.within || self.begin()? {
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let strategy = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, strategy).map_err(io::Error::other)?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            self.end()?;
        }
        Ok(0)
    }
}

/// Unpacks one zstd block of bytes that makes at most `most` bytes, onto the end of `into`.
pub(super) fn unzstd(packed: &[u8], most: usize, into: &mut Vec<u8>) -> io::Result<()> {
    let read = Frames::new(packed).take(most as u64 + 1).read_to_end(into)?;
    if read > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it unpacks to more than it may"));
    }
    Ok(())
}
