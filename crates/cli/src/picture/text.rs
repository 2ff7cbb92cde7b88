//! The picture as text: a bar for each group of units, as long as the most that is alive there.

use super::{Part, Timeline, phase_name, unit_name};
use crate::job::show_bytes;
use memwall_model::ModelSpec;
use memwall_tensor::{ByCategory, Category, Phase};
use std::fmt::Write;

/// Characters of the longest bar.
const WIDTH: u64 = 56;
/// Groups of blocks in a phase.
const GROUPS: usize = 4;

/// A category's letter.
fn letter(c: Category) -> char {
    match c {
        Category::Weights => 'w',
        Category::MasterWeights => 'm',
        Category::Gradients => 'g',
        Category::OptimizerState => 'o',
        Category::Activations => '#',
        Category::Gathered => '+',
        Category::Communication => 'c',
        Category::Workspace => 's',
        Category::Data => 'd',
    }
}

/// The bar of what is alive, to a scale of `most` bytes.
fn bar(live: &ByCategory, most: u64) -> String {
    let scaled = |bytes: u64| {
        ((u128::from(bytes) * u128::from(WIDTH) + u128::from(most) / 2) / u128::from(most.max(1))) as usize
    };
    let mut bar = String::new();
    let mut sum = 0;
    for (c, bytes) in live.iter() {
        sum += bytes;
        // Ends are rounded, not lengths, so that the bar as a whole is as long as it should be.
        bar.extend(std::iter::repeat_n(letter(c), scaled(sum).saturating_sub(bar.len())));
    }
    bar
}

/// One line: the highest of some points.
struct Row {
    phase: Phase,
    name: String,
    live: ByCategory,
}

/// The lines of a phase: embedding and head by themselves, blocks in groups, in their order.
fn rows(spec: &ModelSpec, part: &Part) -> Vec<Row> {
    let highest = |points: &[(Option<u32>, ByCategory)]| {
        points.iter().map(|(_, live)| *live).max_by_key(ByCategory::total).unwrap_or_default()
    };
    let units: Vec<(u32, ByCategory)> = part.units().map(|(unit, points)| (unit, highest(points))).collect();
    // An evaluation is all of a kind.
    if units.is_empty() || part.phase == Phase::Evaluation {
        return vec![Row { phase: part.phase, name: String::new(), live: highest(&part.points) }];
    }
    let last = spec.units.len() as u32 - 1;
    let is_block = |unit: u32| unit > 0 && unit < last;
    let mut rows = Vec::new();
    for run in units.chunk_by(|a, b| is_block(a.0) && is_block(b.0)) {
        for group in run.chunks(run.len().div_ceil(GROUPS)) {
            let (first, last) = (group[0].0, group[group.len() - 1].0);
            let name = match group.len() {
                1 => unit_name(spec, first),
                _ => format!("blocks {}-{}", first - 1, last - 1),
            };
            let live = group.iter().map(|(_, live)| *live).max_by_key(ByCategory::total).unwrap_or_default();
            rows.push(Row { phase: part.phase, name, live });
        }
    }
    rows
}

/// The picture.
pub(crate) fn text(spec: &ModelSpec, t: &Timeline) -> String {
    let most = t.peak.1.total();
    let mut out = String::new();
    let legend: Vec<String> =
        t.categories().iter().map(|c| format!("{} {}", letter(*c), c.name().replace('_', " "))).collect();
    let _ = writeln!(out, "a step     {}", legend.join("  "));
    let mut line = |phase: &str, name: &str, live: &ByCategory, mark: &str| {
        let _ = writeln!(
            out,
            "           {phase:<14} {name:<13} {:<width$} {:>10}{mark}",
            bar(live, most),
            show_bytes(live.total()),
            width = WIDTH as usize
        );
    };
    line("lasting", "", &t.lasting, "");
    let mut marked = false;
    for part in &t.parts {
        let mut named = false;
        for row in rows(spec, part) {
            let is_peak = !marked && row.phase == t.peak.0.phase && row.live.total() == most;
            marked |= is_peak;
            let phase = if named { String::new() } else { phase_name(row.phase) };
            line(&phase, &row.name, &row.live, if is_peak { "  peak" } else { "" });
            named = true;
        }
    }
    out
}
