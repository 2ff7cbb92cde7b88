//! A column of a Parquet file: each row a document.

use std::{
    fs::File,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parquet::{
    basic::{Compression, Type},
    column::{
        page::{Page, PageMetadata, PageReader},
        reader::{ColumnReader, get_column_reader},
    },
    data_type::ByteArray,
    errors::{ParquetError, Result as Parquet},
    file::{
        reader::{FileReader, RowGroupReader, SerializedFileReader},
        serialized_reader::SerializedPageReader,
    },
    schema::types::SchemaDescriptor,
};

use super::{Emit, Place, Stop, in_pieces, unpack};
use crate::{DataError, tokenizer::Cuts};

/// Rows that are read at once.
const ROWS: usize = 256;

/// The most that a page may unpack to, in bytes: what its header can say.
const PAGE: usize = i32::MAX as usize;

/// Hands the strings of the column called `field` to `emit`, row by row.
pub(super) fn documents(
    path: &Path,
    file: File,
    field: &str,
    cuts: Cuts,
    read: &AtomicU64,
    emit: Emit<'_>,
) -> Result<(), Stop> {
    let failed =
        |reason: &dyn ToString| DataError::Parquet { path: path.to_path_buf(), reason: reason.to_string() };
    let twin = Arc::new(file.try_clone().map_err(|error| failed(&error))?);
    let reader = SerializedFileReader::new(file).map_err(|error| failed(&error))?;
    let column =
        column(reader.metadata().file_metadata().schema_descr(), field).map_err(|reason| failed(&reason))?;
    let mut row = 0;
    for index in 0..reader.num_row_groups() {
        let group = reader.get_row_group(index).map_err(|error| failed(&error))?;
        let pages = pages(&*group, &twin, column).map_err(|error| failed(&error))?;
        let schema = group.metadata().column(column).column_descr_ptr();
        let ColumnReader::ByteArrayColumnReader(mut strings) = get_column_reader(schema, pages) else {
            return Err(failed(&format!("the column {field:?} is not made of strings")).into());
        };
        let (mut levels, mut values) = (Vec::new(), Vec::<ByteArray>::new());
        loop {
            levels.clear();
            values.clear();
            let (rows, present, _) = strings
                .read_records(ROWS, Some(&mut levels), None, &mut values)
                .map_err(|error| failed(&error))?;
            if rows == 0 {
                break;
            }
            if present < rows {
                // Levels are those of a column that may lack values; 0 says that it does.
                let at = levels.iter().position(|&level| level == 0).unwrap_or(present) as u64;
                return Err(record(path, row + at + 1, format!("the column {field:?} holds null")).into());
            }
            for value in &values {
                row += 1;
                let text = std::str::from_utf8(value.data()).map_err(|error| {
                    record(path, row, format!("the column {field:?} does not hold UTF-8 text: {error}"))
                })?;
                in_pieces(text.to_owned(), Place::Row(row), cuts, emit)?;
            }
        }
        let bytes = u64::try_from(group.metadata().compressed_size()).unwrap_or(0);
        read.fetch_add(bytes, Ordering::Relaxed);
    }
    Ok(())
}

fn record(path: &Path, row: u64, reason: String) -> DataError {
    DataError::Record { path: path.to_path_buf(), place: Place::Row(row).suffix(), reason }
}

/// Which column is the field, or why none is.
fn column(schema: &SchemaDescriptor, field: &str) -> Result<usize, String> {
    let columns = schema.columns();
    let Some(index) = columns.iter().position(|column| column.path().parts() == [field]) else {
        return Err(format!(
            "there is no plain column {field:?}; {}",
            super::fields(columns.iter().map(|column| column.path().string()))
        ));
    };
    match columns[index].physical_type() {
        Type::BYTE_ARRAY if columns[index].max_rep_level() == 0 => Ok(index),
        other => Err(format!("the column {field:?} holds {other}, not strings")),
    }
}

/// The pages of a column. What is packed with zstd is unpacked here, since the crate would need a C compiler to
/// do it: it is told that the column is not packed, and so hands out each page as it lies in the file.
fn pages(group: &dyn RowGroupReader, file: &Arc<File>, column: usize) -> Parquet<Box<dyn PageReader>> {
    let chunk = group.metadata().column(column);
    if !matches!(chunk.compression(), Compression::ZSTD(_)) {
        return group.get_column_page_reader(column);
    }
    let plain = chunk.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
    let rows = usize::try_from(group.metadata().num_rows())?;
    let packed = SerializedPageReader::new(Arc::clone(file), &plain, rows, None)?;
    Ok(Box::new(Unpacked(packed)))
}

/// Unpacks the pages of another reader.
struct Unpacked<R: PageReader>(R);

impl<R: PageReader> PageReader for Unpacked<R> {
    fn get_next_page(&mut self) -> Parquet<Option<Page>> {
        let Some(mut page) = self.0.get_next_page()? else { return Ok(None) };
        let (buffer, levels) = match &mut page {
            Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } => (buf, 0),
            Page::DataPageV2 { is_compressed: false, .. } => return Ok(Some(page)),
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                (buf, *def_levels_byte_len as usize + *rep_levels_byte_len as usize)
            }
        };
        let packed = buffer.get(levels..).ok_or_else(|| ParquetError::EOF("a page is cut off".into()))?;
        let mut plain = buffer[..levels].to_vec();
        unpack::unzstd(packed, PAGE - levels.min(PAGE), &mut plain)
            .map_err(|error| ParquetError::General(format!("cannot unpack a zstd page: {error}")))?;
        *buffer = plain.into();
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> Parquet<Option<PageMetadata>> {
        self.0.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Parquet<()> {
        self.0.skip_next_page()
    }
}

impl<R: PageReader> Iterator for Unpacked<R> {
    type Item = Parquet<Page>;

    fn next(&mut self) -> Option<Parquet<Page>> {
        self.get_next_page().transpose()
    }
}
