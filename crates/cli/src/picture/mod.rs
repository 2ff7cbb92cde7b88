//! Memory over one step, as a picture: what is alive after each event, by category.

mod svg;
mod text;

pub(crate) use svg::svg;
pub(crate) use text::text;

use memwall_engine::Prediction;
use memwall_model::{ModelSpec, UnitKind};
use memwall_tensor::{Arena, ByCategory, Category, Change, Event, Moment, Phase};

/// What is alive over one step.
pub(crate) struct Timeline {
    /// What lives as long as the run.
    lasting: ByCategory,
    /// Forward and backward of a micro-batch, the optimizer's step, and an evaluation where there is one.
    parts: Vec<Part>,
    /// The moment of the peak and what is alive then.
    peak: (Moment, ByCategory),
}

/// A phase of the step.
struct Part {
    phase: Phase,
    /// What is alive after each event, and the unit that is at work.
    points: Vec<(Option<u32>, ByCategory)>,
}

impl Part {
    /// Runs of points at the same unit.
    fn units(&self) -> impl Iterator<Item = (u32, &[(Option<u32>, ByCategory)])> {
        self.points.chunk_by(|a, b| a.0 == b.0).filter_map(|run| Some((run[0].0?, run)))
    }
}

impl Timeline {
    /// From what was predicted.
    pub(crate) fn of(p: &Prediction) -> Self {
        let lasting = p.initial.live;
        let mut parts = parts(lasting, &p.events.micro_batch);
        parts.push(Part { phase: Phase::Optimizer, points: vec![(None, lasting)] });
        parts.extend(self::parts(lasting, &p.events.evaluation));
        Self { lasting, parts, peak: (p.run.peak, p.run.at_peak) }
    }

    /// Categories that are ever there, in the order of tables.
    fn categories(&self) -> Vec<Category> {
        let ever = |c: &Category| self.parts.iter().flat_map(|p| &p.points).any(|(_, live)| live[*c] > 0);
        Category::ALL.into_iter().filter(ever).collect()
    }
}

/// The phases of a sequence of events that begins with what lasts.
fn parts(lasting: ByCategory, events: &[Event]) -> Vec<Part> {
    let mut live = lasting;
    let alike = |a: &Event, b: &Event| a.moment.phase == b.moment.phase;
    let part = |events: &[Event]| Part {
        phase: events[0].moment.phase,
        points: events
            .iter()
            .map(|e| {
                let bytes = Arena::rounded(e.block.bytes);
                match e.change {
                    Change::Take => live[e.block.category] += bytes,
                    Change::GiveBack => live[e.block.category] -= bytes,
                }
                (e.moment.unit, live)
            })
            .collect(),
    };
    events.chunk_by(alike).map(part).collect()
}

/// What people call a unit.
pub(crate) fn unit_name(spec: &ModelSpec, unit: u32) -> String {
    match spec.units.get(unit as usize).map(|u| u.kind) {
        Some(UnitKind::Embedding { .. }) => "embedding".into(),
        Some(UnitKind::Head { .. }) => "head".into(),
        // The embedding comes first.
        _ => format!("block {}", unit.saturating_sub(1)),
    }
}

/// What people call a phase.
pub(crate) fn phase_name(phase: Phase) -> String {
    phase.name().replace('_', " ")
}

/// A moment as people say it: "backward, block 3, linear".
pub(crate) fn moment_name(spec: &ModelSpec, m: Moment) -> String {
    let unit = m.unit.map(|u| unit_name(spec, u));
    let operation = (!m.operation.is_empty()).then(|| m.operation.to_owned());
    [Some(phase_name(m.phase)), unit, operation].into_iter().flatten().collect::<Vec<_>>().join(", ")
}
