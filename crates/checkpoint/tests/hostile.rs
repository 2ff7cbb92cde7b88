//! safetensors files that are not what they should be: each is refused with a reason, whatever it holds. What the
//! format's own library makes of the same bytes is the measure.

use memwall_checkpoint::TensorFile;
use safetensors::SafeTensors;
use std::fs;
use std::path::PathBuf;

struct Folder(tempfile::TempDir);

impl Folder {
    fn file(&self) -> PathBuf {
        self.0.path().join("x.safetensors")
    }

    fn outcome(&self, bytes: &[u8]) -> Result<Vec<String>, String> {
        fs::write(self.file(), bytes).unwrap();
        let opened = TensorFile::open(&self.file()).map_err(|e| e.to_string())?;
        let mut names: Vec<String> = opened.names().map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }

    fn refused(&self, bytes: &[u8], word: &str) {
        let e = self.outcome(bytes).unwrap_err();
        assert!(e.contains("x.safetensors") && e.contains(word), "{word}: {e}");
        assert!(e.len() < 1000, "{} characters", e.len());
    }
}

fn folder() -> Folder {
    Folder(tempfile::tempdir().unwrap())
}

fn file(header: impl AsRef<[u8]>, data: usize) -> Vec<u8> {
    let header = header.as_ref();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(vec![0; data]);
    bytes
}

const TWO: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,3],"data_offsets":[8,14]}}"#;

#[test]
fn a_whole_file_opens_and_every_truncation_and_extension_is_refused() {
    let (f, whole) = (folder(), file(TWO, 14));
    assert_eq!(f.outcome(&whole).unwrap(), ["a", "b"]);
    for n in 0..whole.len() {
        f.refused(&whole[..n], "is not a whole safetensors file");
    }
    f.refused(&file(TWO, 15), "promises 14 bytes of tensors, the file has 15");
}

#[test]
fn a_header_longer_than_the_file_or_the_limit_is_refused_without_being_read() {
    let f = folder();
    for length in [15u64, 100_000_001, 1 << 40, 1 << 63, u64::MAX - 7, u64::MAX] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        f.refused(&bytes, &format!("its header would take {length} bytes"));
    }
    // A file that is long enough, and has holes instead of bytes.
    fs::write(f.file(), 200_000_000u64.to_le_bytes()).unwrap();
    fs::OpenOptions::new().write(true).open(f.file()).unwrap().set_len(300_000_000).unwrap();
    let e = TensorFile::open(&f.file()).unwrap_err().to_string();
    assert!(e.contains("its header would take 200000000 bytes"), "{e}");
}

#[test]
fn offsets_that_overlap_leave_holes_run_backwards_or_do_not_fit_the_shape_are_refused() {
    let one = |shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let f = folder();
    f.refused(&file(one("[2]", "[4,12]"), 12), "a leaves a hole after the header");
    f.refused(&file(one("[2]", "[8,0]"), 8), "a leaves a hole after the header");
    f.refused(&file(one("[2]", "[0,4]"), 4), "a of shape [2] and type F32 does not take the bytes 0 to 4");
    f.refused(&file(one("[2]", "[0,8,8]"), 8), "not a whole safetensors file");
    f.refused(&file(one("[2]", "[0,18446744073709551616]"), 8), "not a whole safetensors file");
    f.refused(&file(one("[2]", "[-1,7]"), 8), "not a whole safetensors file");
    f.refused(&file(one("[2]", "[0,18446744073709551615]"), 8), "does not take the bytes");
    f.refused(&file(TWO.replace("8,14", "6,12"), 14), "b overlaps a");
    f.refused(&file(TWO.replace("8,14", "9,15"), 15), "b leaves a hole after a");
}

#[test]
fn shapes_that_overflow_are_refused_and_empty_ones_take_no_bytes() {
    let one = |dtype: &str, shape: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,0]}}}}"#)
    };
    let f = folder();
    for shape in ["[4611686018427387904]", "[4294967296,4294967296]", "[18446744073709551615,2]"] {
        f.refused(&file(one("F32", shape), 0), "does not take the bytes 0 to 0");
    }
    f.refused(&file(one("F32", "[18446744073709551616]"), 0), "not a whole safetensors file");
    f.refused(&file(one("F32", "[1.5]"), 0), "not a whole safetensors file");
    f.refused(&file(one("F32", "[]"), 0), "does not take the bytes 0 to 0");
    f.refused(&file(one("F4", "[1]"), 0), "does not take the bytes 0 to 0");
    f.refused(&file(one("F33", "[0]"), 0), "a has the unknown type \"F33\"");
    let long = format!("[{}1]", "1,".repeat(1000));
    f.refused(&file(one("F32", &long), 0), "more than 16 dims");
    assert_eq!(f.outcome(&file(one("F32", "[3,0]"), 0)).unwrap(), ["a"]);
}

#[test]
fn headers_that_are_not_objects_of_distinct_tensors_are_refused() {
    let f = folder();
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
    let nested =
        format!("{{\"__metadata__\":{{\"a\":{}{}}}}}", "{\"b\":".repeat(200_000), "}".repeat(200_000));
    for header in
        ["", " ", "[]", "null", "{", "{}}", "{\"a\":1}", "{\"a\":{}}", "{\"a\":null}", &deep, &nested]
    {
        f.refused(&file(header, 0), "is not a whole safetensors file");
    }
    let empty = r#""a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    f.refused(&file(format!("{{{empty},{empty}}}"), 0), "a is there twice");
    f.refused(&file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), "__metadata__ is there twice");
    for metadata in ["1", "[]", "{\"a\":1}", "{\"a\":{}}", "\"a\""] {
        f.refused(&file(format!("{{\"__metadata__\":{metadata},{empty}}}"), 0), "invalid type");
    }
    f.refused(&file(b"{\"\xff\":1}", 0), "not a whole safetensors file");
    let name = "n".repeat(1 << 20);
    f.refused(
        &file(format!("{{\"{name}\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,5]}}}}"), 5),
        "nnn...",
    );
}

#[test]
fn a_pipe_under_the_name_of_a_file_is_refused_and_not_waited_for() {
    let f = folder();
    assert!(std::process::Command::new("mkfifo").arg(f.file()).status().unwrap().success());
    let e = TensorFile::open(&f.file()).unwrap_err().to_string();
    assert!(e.contains("is not a regular file"), "{e}");
}

#[test]
fn what_opens_is_what_the_formats_library_opens() {
    let f = folder();
    let whole = file(TWO, 14);
    let mut opened = 0;
    // Every byte replaced by every value that matters to JSON, numbers or lengths.
    for at in 0..whole.len() {
        for value in
            (0..128).step_by(9).chain([b'"', b'{', b'}', b'[', b']', b',', b':', b'0', b'1', b'9', 255])
        {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let theirs = SafeTensors::deserialize(&bytes).map(|t| {
                let mut names: Vec<String> = t.names().into_iter().map(str::to_owned).collect();
                names.sort();
                names
            });
            match (f.outcome(&bytes), theirs) {
                (Ok(ours), Ok(theirs)) => {
                    opened += 1;
                    assert_eq!(ours, theirs);
                }
                (Err(_), Err(_)) => {}
                // Theirs keeps the last of two tensors of one name; of one letter they cannot differ otherwise.
                (Err(e), Ok(_)) => panic!("byte {at} = {value}: only we refuse it: {e}"),
                (Ok(_), Err(e)) => panic!("byte {at} = {value}: only they refuse it: {e}"),
            }
        }
    }
    assert!(opened > 14 * 20, "changes of the data and of names must open");
}
