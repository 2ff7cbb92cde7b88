//! What this machine is and has: processor, cores, caches, memory, and the user's folder for caches.

use memwall_tensor::Family;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// No budget is larger: a region of this size can still be mapped.
pub(crate) const ADDRESS_SPACE: u64 = 1 << 46;

/// Threads to compute with when the job does not say.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes that a new process may use: the kernel's estimate, or the control group's limit where that is lower.
pub(crate) fn available_memory() -> u64 {
    let available = field("/proc/meminfo", "MemAvailable:").unwrap_or(u64::MAX);
    let limit = read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|t| t.trim().parse().ok());
    available.min(limit.unwrap_or(u64::MAX)).min(ADDRESS_SPACE)
}

/// The most bytes that this process has had resident.
pub(crate) fn peak_resident() -> Option<u64> {
    field("/proc/self/status", "VmHWM:")
}

/// A "Name:   123 kB" line, in bytes.
fn field(file: &str, name: &str) -> Option<u64> {
    let text = read_to_string(file).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Folder of this user where programs keep what they can make again.
pub(crate) fn user_cache() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let user = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    user.map(|folder| folder.join("memwall"))
}

/// What tells one machine from another where speed is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The processor's name, as the operating system gives it.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Caches of the first core, innermost first, such as "L1 data 32K".
    pub caches: Vec<String>,
    /// Instructions that kernels are compiled for here.
    pub instructions: String,
}

impl Machine {
    /// The machine that the program runs on.
    #[must_use]
    pub fn this() -> Self {
        let instructions = match Family::detect() {
            Family::Avx512 => "AVX-512",
            Family::Avx2 => "AVX2",
            Family::Portable => "portable",
        };
        Self { cpu: cpu(), cores: cores(), caches: caches(), instructions: instructions.into() }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let caches = self.caches.join(", ");
        write!(f, "{}, {} cores, {}; caches {caches}", self.cpu, self.cores, self.instructions)
    }
}

/// The name, and the numbers that tell processors of one name apart.
fn cpu() -> String {
    let text = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |name: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
        pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
    };
    let name = value("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    match (value("cpu family"), value("model")) {
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name,
    }
}

fn caches() -> Vec<String> {
    let folders = read_dir("/sys/devices/system/cpu/cpu0/cache").into_iter().flatten().flatten();
    let mut caches: Vec<_> = folders.filter_map(|folder| cache(&folder.path())).collect();
    caches.sort();
    caches
}

fn cache(folder: &Path) -> Option<String> {
    let read = |name: &str| read_to_string(folder.join(name)).ok().map(|text| text.trim().to_owned());
    let kind = match read("type")?.as_str() {
        "Unified" => String::new(),
        kind => format!(" {}", kind.to_lowercase()),
    };
    Some(format!("L{}{kind} {}", read("level")?, read("size")?))
}
