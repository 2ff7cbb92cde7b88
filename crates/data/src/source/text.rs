//! A text file: one document.

use std::{io, io::Read, path::Path};

use super::{Emit, PIECE, Piece, Place, Stop};
use crate::{DataError, tokenizer::Cuts};

/// Hands the text of `reader` to `emit` as one document.
pub(super) fn document(
    path: &Path,
    reader: &mut dyn Read,
    cuts: Cuts,
    failed: &dyn Fn(io::Error) -> DataError,
    emit: Emit<'_>,
) -> Result<(), Stop> {
    let place = Place::File;
    // Text that has been checked, then at most the start of one character that has not.
    let (mut text, mut rest) = (String::new(), Vec::new());
    let mut block = vec![0; PIECE];
    // Bytes of the document before `rest`.
    let mut offset = 0;
    let not_text = |offset, reason| DataError::NotText { path: path.to_path_buf(), offset, reason };
    // A long text without a place to cut is looked through once for each doubling, not once for each block.
    let mut enough = 2 * PIECE;
    loop {
        let read = match reader.read(&mut block) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error).into()),
        };
        if read == 0 {
            break;
        }
        rest.extend_from_slice(&block[..read]);
        let valid = match std::str::from_utf8(&rest) {
            Ok(valid) => valid.len(),
            Err(error) => {
                let valid = error.valid_up_to();
                if error.error_len().is_some() {
                    no_nul(&rest[..valid]).map_err(|at| not_text(offset + at, "a NUL byte"))?;
                    return Err(not_text(offset + valid as u64, "an invalid byte sequence").into());
                }
                valid
            }
        };
        // NUL is valid UTF-8, but a file that contains it is binary or UTF-16.
        no_nul(&rest[..valid]).map_err(|at| not_text(offset + at, "a NUL byte"))?;
        text.push_str(&String::from_utf8_lossy(&rest[..valid]));
        rest.drain(..valid);
        offset += valid as u64;
        while text.len() > enough {
            let Some(cut) = cuts.after(&text, PIECE) else {
                enough = 2 * text.len();
                break;
            };
            let after = text.split_off(cut);
            emit(Piece { text: std::mem::replace(&mut text, after), last: false, place })?;
            enough = 2 * PIECE;
        }
    }
    if !rest.is_empty() {
        return Err(not_text(offset, "the file ends within a character").into());
    }
    super::in_pieces(text, place, cuts, emit)
}

/// Where the first NUL byte is, if there is one.
fn no_nul(bytes: &[u8]) -> Result<(), u64> {
    bytes.iter().position(|&byte| byte == 0).map_or(Ok(()), |at| Err(at as u64))
}
