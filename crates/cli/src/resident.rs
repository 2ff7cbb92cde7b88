//! How much of this machine's memory the process itself takes: what its ledger has, and a small overhead that is
//! explained part by part.
//!
//! Anonymous memory is meant, which nothing but the process's end gives back, and of the memory that ranks share what is
//! the rank's own. Pages of files (the program, mapped data) are the system's to drop, and are reported apart.

use crate::job::show_bytes;
use crate::setup::Setup;
use memwall_engine::Prediction;
use memwall_tensor::Event;
use serde_json::{Map, Value, json};
use std::fs::read_to_string;
use std::path::Path;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What the process takes, part by part.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Resident {
    /// Names and bytes.
    parts: Vec<(&'static str, u64)>,
}

impl Resident {
    /// Predicts it.
    pub(crate) fn of(setup: &Setup, p: &Prediction) -> Self {
        let (s, spec) = (&setup.settings, &setup.spec);
        let events = p.events.iter().count() * size_of::<Event>();
        // Names, dims and places of parameters: in the model's spec, in the rank's, and twice in its weights' layout.
        let described = spec.params.iter().map(|p| 4 * (p.name.len() + 160) as u64).sum::<u64>();
        let parts = vec![
            ("ledger with its holes", p.run.reserved),
            // Relocated tables, and what the allocator keeps of reading, checking and measuring before the first step.
            ("program", 2 * MIB),
            // A stack's used pages and the allocator's arena of each thread.
            ("threads", setup.description.threads as u64 * 192 * KIB),
            ("tokenizer", tokenizer(setup)),
            ("model's description", described),
            // Ids, targets and positions of a micro-batch, 4 bytes each.
            ("micro-batch on the host", 12 * s.micro_tokens() as u64),
            ("predicted events", events as u64),
        ];
        Self { parts }
    }

    /// All parts together.
    pub(crate) fn total(&self) -> u64 {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }

    /// How far a measurement may be from it: 3% or 32 MiB, whichever is more.
    fn tolerance(&self) -> u64 {
        (self.total() * 3 / 100).max(32 * MIB)
    }

    /// Whether a measurement is near enough.
    pub(crate) fn agrees_with(&self, measured: u64) -> bool {
        self.total().abs_diff(measured) <= self.tolerance()
    }

    /// A line for people: small parts are summed.
    pub(crate) fn text(&self) -> String {
        let (large, small): (Vec<_>, Vec<_>) = self.parts.iter().partition(|(_, b)| *b >= 4 * MIB);
        let rest: u64 = small.iter().map(|(_, b)| b).sum();
        let parts = large.iter().map(|(n, b)| format!("{} {n}", show_bytes(*b)));
        let parts: Vec<String> =
            parts.chain([format!("{} program, threads and bookkeeping", show_bytes(rest))]).collect();
        format!("process    {} resident: {}\n", show_bytes(self.total()), parts.join(" + "))
    }

    /// For JSON.
    pub(crate) fn to_json(&self) -> Value {
        let parts: Map<String, Value> =
            self.parts.iter().map(|(n, b)| ((*n).to_owned(), (*b).into())).collect();
        json!({"total": self.total(), "parts": parts, "tolerance": self.tolerance()})
    }
}

/// Bytes of the tokenizer: its file is kept as it is, beside the tables made of it. Both factors are measured, on the
/// tokenizer of SmolLM2: 49152 tokens, 3.5 MB of JSON, 42 MB in memory. Where there is no file yet, the vocabulary
/// tells.
fn tokenizer(setup: &Setup) -> u64 {
    let name = &setup.job.data.tokenizer;
    if name == "bytes" {
        return 0;
    }
    let by_vocabulary = 860 * setup.spec.config.vocab_size as u64;
    std::fs::metadata(Path::new(name)).map_or(by_vocabulary, |file| 12 * file.len())
}

/// The most that this process has had, as far as the system and looks at it tell.
#[derive(Debug, Default)]
pub(crate) struct Peak {
    highest: Option<u64>,
}

impl Peak {
    /// Looks at the process now, which owns this many bytes of the memory that ranks share.
    pub(crate) fn look(&mut self, shared: Option<u64>) {
        // The system remembers the highest of all kinds of pages together, so what are file pages and shared ones now is
        // taken away: those may have been fewer then, and so what is anonymous now counts as well. Of shared pages the
        // process has mapped other ranks' too, so its own are counted by themselves.
        let Some(status) = Status::read() else { return };
        let others = status.file + status.shared;
        let seen = status.peak.saturating_sub(others).max(status.anonymous) + shared.unwrap_or(0);
        self.highest = self.highest.max(Some(seen));
    }

    /// Anonymous and own shared bytes; `None` where the system does not tell.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.highest
    }
}

/// What Linux says of this process, bytes.
struct Status {
    peak: u64,
    anonymous: u64,
    file: u64,
    shared: u64,
}

impl Status {
    fn read() -> Option<Self> {
        let text = read_to_string("/proc/self/status").ok()?;
        let field = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|l| l.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * KIB)
        };
        Some(Self {
            peak: field("VmHWM:")?,
            anonymous: field("RssAnon:")?,
            file: field("RssFile:")?,
            shared: field("RssShmem:")?,
        })
    }
}
