//! `memwall profile`: how fast this machine is, measured once and saved; and what a run's MFU refers to.

mod date;
mod measure;
mod saved;

pub use crate::machine::Machine;
pub use measure::{LAYOUTS, bandwidth, device, flops, multiply_adds, product};
pub use saved::{Bandwidth, MatmulRate, MultiplyAdds, Profile};

use crate::args::ProfileArgs;
use crate::failure::{Failure, Outcome};
use crate::figures::counted;
use crate::{machine, report};
use measure::Effort;
use memwall_tensor::device::{MatmulDims, MatmulLayout};
use memwall_tensor::{DType, Description, OutOfMemory};
use saved::Unusable;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Today in UTC, as 2031-05-17.
#[must_use]
pub fn today() -> String {
    date::today()
}

/// Where `memwall train` looks for the profile.
fn place() -> Option<PathBuf> {
    machine::user_cache().map(|folder| folder.join("profile.json"))
}

/// Measures, prints and saves.
pub(crate) fn profile(args: &ProfileArgs) -> Result<(), Failure> {
    let path = args.output.clone().or_else(place).ok_or_else(|| {
        Failure::Refused(
            "there is no folder to save the profile in: HOME is not set; give --output FILE".into(),
        )
    })?;
    let mut profile = Profile::new(Machine::this(), today(), args.quick);
    let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    measure::fill(&mut profile, &effort, |what| complain!("measuring, {what}"))
        .map_err(|e| Failure::Failed(e.to_string()))?;
    profile.write(&path).fail()?;
    if args.json {
        say!("{}", profile.to_text());
    } else {
        tell!("{}", table(&profile));
        say!("saved      {}", path.display());
    }
    Ok(())
}

/// What people read of a profile.
fn table(profile: &Profile) -> String {
    let mut text = format!("machine    {}\n", profile.machine);
    for row in &profile.multiply_adds {
        let rate = report::count(row.flops_per_second);
        let _ = writeln!(
            text,
            "arithmetic {rate}FLOP/s, fused multiply-adds in registers, {}",
            counted(row.threads, "thread")
        );
    }
    for row in &profile.memory {
        let rate = report::count(row.bytes_per_second);
        let _ = writeln!(text, "memory     {rate}B/s, {}, {}", row.kind, counted(row.threads, "thread"));
    }
    let mut columns: Vec<(usize, &str)> = Vec::new();
    let mut rows: Vec<(&str, usize, usize, usize)> = Vec::new();
    for row in &profile.matmul {
        let (column, line) = ((row.threads, &*row.operands), (&*row.layout, row.m, row.n, row.k));
        if !columns.contains(&column) {
            columns.push(column);
        }
        if !rows.contains(&line) {
            rows.push(line);
        }
    }
    let _ = write!(text, "\nGFLOP/s in matrix products, by threads and type of the operands\n{:31}", "");
    for (threads, operands) in &columns {
        let _ = write!(text, "{:>9}", format!("{threads} {operands}"));
    }
    text.push('\n');
    for line in rows {
        let (layout, m, n, k) = line;
        let _ = write!(text, "  {layout}  {:<25}", format!("{m} x {n} x {k}"));
        for column in &columns {
            let mut found = profile.matmul.iter().filter(|row| {
                (row.threads, &*row.operands) == *column && (&*row.layout, row.m, row.n, row.k) == line
            });
            let rate = found.next().map_or(f64::NAN, |row| row.flops_per_second);
            let _ = write!(text, "{:9.1}", rate / 1e9);
        }
        text.push('\n');
    }
    text
}

/// The rate of matrix products that MFU refers to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Peak {
    /// FLOP/s.
    pub(crate) flops: f64,
    /// Where it comes from.
    pub(crate) source: Source,
}

/// Where a peak comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Source {
    /// The saved profile.
    Saved { date: String, quick: bool },
    /// One product, measured at the start.
    Measured,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Saved { date, quick } => {
                write!(f, "this machine's {}profile of {date}", if *quick { "quick " } else { "" })
            }
            Source::Measured => f.write_str("measured just now; memwall profile measures it thoroughly"),
        }
    }
}

/// What MFU refers to with these threads: the saved profile where it is of this machine, or else a quick measurement, which
/// takes about half a second. Says in one line why a profile that is there is not used.
///
/// # Errors
/// Out of memory.
pub(crate) fn peak(description: Description) -> Result<Peak, OutOfMemory> {
    let threads = description.threads;
    let path = place();
    let saved = match &path {
        Some(path) => Profile::read(path, &Machine::this()).and_then(|p| Ok((p.peak(threads)?, p))),
        None => Err(Unusable::Absent),
    };
    let why = match saved {
        Ok((flops, p)) => return Ok(Peak { flops, source: Source::Saved { date: p.date, quick: p.quick } }),
        Err(Unusable::Absent) => None,
        Err(Unusable::Damaged(why)) => Some(format!("it is damaged: {why}")),
        Err(Unusable::Foreign(why)) => Some(why),
        Err(Unusable::Threads) => Some(format!("it has no rate for {}", counted(threads, "thread"))),
    };
    if let (Some(why), Some(path)) = (why, path) {
        complain!(
            "memwall: the profile {} is not used: {why}; memwall profile measures anew",
            path.display()
        );
    }
    let dims = MatmulDims { m: 768, n: 768, k: 768 };
    let time = Duration::from_millis(400);
    let flops = measure::matmul(threads, DType::F32, MatmulLayout::Nt, dims, time)?;
    Ok(Peak { flops, source: Source::Measured })
}
