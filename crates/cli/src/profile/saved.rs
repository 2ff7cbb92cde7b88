//! A saved profile: its format, its file, and whether it tells anything about this machine.

use crate::machine::Machine;
use memwall_checkpoint::{CheckpointError, Disk};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Of the format below.
const FORMAT: u32 = 1;

/// How fast a machine is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Version of this format.
    pub format: u32,
    /// Version of the program that measured: another's kernels may be faster.
    pub program: String,
    /// When, UTC.
    pub date: String,
    /// Whether only small sizes were measured.
    pub quick: bool,
    /// What was measured.
    pub machine: Machine,
    /// Fused multiply-adds in registers.
    pub multiply_adds: Vec<MultiplyAdds>,
    /// Memory traffic.
    pub memory: Vec<Bandwidth>,
    /// Matrix products.
    pub matmul: Vec<MatmulRate>,
}

/// The peak of arithmetic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MultiplyAdds {
    /// Threads that computed.
    pub threads: usize,
    /// FLOP/s of all of them.
    pub flops_per_second: f64,
}

/// The speed of memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bandwidth {
    /// Threads that went through it.
    pub threads: usize,
    /// "read", "copy" or "update".
    pub kind: String,
    /// Bytes that the program read and wrote a second.
    pub bytes_per_second: f64,
}

/// The speed of a matrix product.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatmulRate {
    /// Threads that computed.
    pub threads: usize,
    /// Type of the operands.
    pub operands: String,
    /// "nt", "nn" or "tn".
    pub layout: String,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// FLOP/s.
    pub flops_per_second: f64,
}

/// Why a profile does not help.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// There is none.
    Absent,
    /// The file cannot be read as one.
    Damaged(String),
    /// It is of another machine or of another version of the program.
    Foreign(String),
    /// It has no figures for this many threads.
    Threads,
}

impl Profile {
    /// The current format's header, without figures.
    pub(super) fn new(machine: Machine, date: String, quick: bool) -> Self {
        Self {
            format: FORMAT,
            program: env!("CARGO_PKG_VERSION").into(),
            date,
            quick,
            machine,
            multiply_adds: Vec::new(),
            memory: Vec::new(),
            matmul: Vec::new(),
        }
    }

    /// Writes the file, whole or not at all.
    pub(super) fn write(&self, path: &Path) -> Result<(), CheckpointError> {
        let disk = Disk::default();
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            disk.make_folder(folder)?;
        }
        disk.replace(path, format!("{}\n", self.to_text()).as_bytes())
    }

    /// As the file has it.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values are JSON")
    }

    /// From the text of a file.
    ///
    /// # Errors
    /// It is no profile of this format.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let profile: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if profile.format != FORMAT {
            return Err(format!("its format is {}, not {FORMAT}", profile.format));
        }
        Ok(profile)
    }

    /// Reads a file that this machine can rely on.
    pub(super) fn read(path: &Path, machine: &Machine) -> Result<Self, Unusable> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(Unusable::Absent),
            Err(e) => return Err(Unusable::Damaged(e.to_string())),
        };
        let profile = Self::from_text(&text).map_err(Unusable::Damaged)?;
        if profile.machine != *machine {
            return Err(Unusable::Foreign(format!("it is of another machine ({})", profile.machine)));
        }
        if profile.program != env!("CARGO_PKG_VERSION") {
            return Err(Unusable::Foreign(format!("memwall {} measured it", profile.program)));
        }
        Ok(profile)
    }

    /// The best rate of a matrix product with this many threads, FLOP/s.
    pub(super) fn peak(&self, threads: usize) -> Result<f64, Unusable> {
        let rates = self.matmul.iter().filter(|row| row.threads == threads).map(|row| row.flops_per_second);
        let best = rates.fold(0.0, f64::max);
        if best > 0.0 && best.is_finite() { Ok(best) } else { Err(Unusable::Threads) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            cpu: "one".into(),
            cores: 2,
            caches: vec!["L1 data 32K".into()],
            instructions: "AVX2".into(),
        }
    }

    fn profile() -> Profile {
        let mut p = Profile::new(machine(), "2031-05-17".into(), false);
        for (threads, m, flops_per_second) in [(1, 64, 1.5e9), (1, 128, 2.75e9), (2, 64, 3.125e9)] {
            let (operands, layout) = ("f32".into(), "nt".into());
            p.matmul.push(MatmulRate { threads, operands, layout, m, n: m, k: m, flops_per_second });
        }
        p.multiply_adds.push(MultiplyAdds { threads: 1, flops_per_second: 4e9 });
        p.memory.push(Bandwidth { threads: 1, kind: "copy".into(), bytes_per_second: 1e10 });
        p
    }

    fn file() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/profile.json");
        (folder, path)
    }

    #[test]
    fn what_is_written_is_read_again() {
        let (_folder, path) = file();
        assert_eq!(Profile::read(&path, &machine()), Err(Unusable::Absent));
        profile().write(&path).unwrap();
        assert_eq!(Profile::read(&path, &machine()), Ok(profile()));
    }

    #[test]
    fn the_peak_is_the_best_rate_of_these_threads() {
        assert_eq!(profile().peak(1), Ok(2.75e9));
        assert_eq!(profile().peak(2), Ok(3.125e9));
        assert_eq!(profile().peak(3), Err(Unusable::Threads));
    }

    #[test]
    fn another_machines_profile_is_foreign() {
        let (_folder, path) = file();
        profile().write(&path).unwrap();
        for change in [
            |m: &mut Machine| m.cpu.push('x'),
            |m: &mut Machine| m.cores += 1,
            |m: &mut Machine| m.caches.clear(),
            |m: &mut Machine| m.instructions.clear(),
        ] {
            let mut other = machine();
            change(&mut other);
            assert!(matches!(Profile::read(&path, &other), Err(Unusable::Foreign(_))), "{other:?}");
        }
        Profile { program: "0.0.0".into(), ..profile() }.write(&path).unwrap();
        assert!(matches!(Profile::read(&path, &machine()), Err(Unusable::Foreign(_))));
    }

    #[test]
    fn a_file_that_is_no_profile_is_damaged() {
        let (_folder, path) = file();
        profile().write(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let more = text.replacen('{', "{\"surprise\": 1,", 1);
        let later = text.replacen("\"format\": 1", "\"format\": 2", 1);
        for bad in [&text[..text.len() / 2], "", "[]", &more, &later] {
            std::fs::write(&path, bad).unwrap();
            assert!(matches!(Profile::read(&path, &machine()), Err(Unusable::Damaged(_))), "{bad}");
        }
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(matches!(Profile::read(&path, &machine()), Err(Unusable::Damaged(_))));
    }
}
