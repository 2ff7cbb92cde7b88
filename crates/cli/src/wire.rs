//! Bytes that ranks get from each other in a step, by collective and axes: predicted, and whether a run's are the same.

use crate::job::show_bytes;
use memwall_comm::{Collective, Groups, Traffic};
use memwall_layout::Mesh;
use memwall_tensor::Cpu;
use serde_json::{Value, json};
use std::fmt::Write;

/// By group, in the order of [`Groups::AXES`].
pub(crate) type ByGroup = [Traffic; 3];

/// The comparison of a rank's steps with their prediction.
#[derive(Debug, Clone)]
pub(crate) struct Wire {
    predicted: ByGroup,
    /// Of the last step, or of the first that differs.
    measured: Option<ByGroup>,
    /// The first step that differs.
    different: Option<u64>,
}

impl Wire {
    /// Steps are to be like this.
    pub(crate) fn new(predicted: ByGroup) -> Self {
        Self { predicted, measured: None, different: None }
    }

    /// A step has been done; these are what had come before it and after it.
    pub(crate) fn step(&mut self, step: u64, before: ByGroup, after: ByGroup) {
        if self.different.is_some() {
            return;
        }
        let measured = std::array::from_fn(|group| after[group] - before[group]);
        self.different = (measured != self.predicted).then_some(step);
        self.measured = Some(measured);
    }

    /// Whether all were as predicted.
    pub(crate) fn holds(&self) -> bool {
        self.different.is_none()
    }

    /// The first step that was not, in words.
    pub(crate) fn difference(&self) -> Option<String> {
        self.different.map(|step| format!("first in step {step}"))
    }

    /// The table, where ranks have anything to say to each other.
    pub(crate) fn text(&self, mesh: Mesh) -> String {
        let measured = self.measured.unwrap_or_default();
        let rows = rows(mesh, &self.predicted, &measured);
        let mut text = String::new();
        let mut lead =
            format!("wire       {:<30}{:>16}{:>16}   bytes a step\n", "collective", "predicted", "measured");
        for row in &rows {
            let verdict = if row.predicted == row.measured { "equal" } else { "DIFFERENT" };
            let what = format!("{} {}", row.collective.name(), row.axes);
            let ([_, p], [_, m]) = (row.predicted, row.measured);
            let _ = writeln!(text, "{lead}           {what:<30}{p:>16}{m:>16}   {verdict}");
            lead.clear();
        }
        text
    }

    /// For the summary.
    pub(crate) fn to_json(&self, mesh: Mesh) -> Value {
        json!({
            "predicted": to_json(mesh, &self.predicted),
            "measured": self.measured.map(|measured| to_json(mesh, &measured)),
            "first_difference": self.different,
        })
    }
}

/// A collective along some axes.
struct Row {
    collective: Collective,
    axes: String,
    /// Calls and bytes.
    predicted: [u64; 2],
    measured: [u64; 2],
}

/// The rows in which there is something. Groups along the same axes have one in common.
fn rows(mesh: Mesh, predicted: &ByGroup, measured: &ByGroup) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (group, axes) in Groups::<Cpu>::AXES.into_iter().enumerate() {
        let names: Vec<_> = axes.iter().filter(|a| mesh.degree(**a) > 1).map(|a| a.name()).collect();
        for (i, collective) in Collective::ALL.into_iter().enumerate() {
            let of = |traffic: &ByGroup| [traffic[group].calls[i], traffic[group].bytes[i]];
            let (predicted, measured) = (of(predicted), of(measured));
            // A group of one rank moves nothing.
            if names.is_empty() || (predicted, measured) == ([0; 2], [0; 2]) {
                continue;
            }
            let axes = names.join(" x ");
            let sum = |to: &mut [u64; 2], more: [u64; 2]| to.iter_mut().zip(more).for_each(|(t, m)| *t += m);
            match rows.iter_mut().find(|row| row.collective == collective && row.axes == axes) {
                Some(row) => {
                    sum(&mut row.predicted, predicted);
                    sum(&mut row.measured, measured);
                }
                None => rows.push(Row { collective, axes, predicted, measured }),
            }
        }
    }
    rows
}

/// Bytes of a step over all groups.
pub(crate) fn total(traffic: &ByGroup) -> u64 {
    traffic.iter().map(Traffic::total_bytes).sum()
}

/// The lines of a plan, where ranks have anything to say to each other.
pub(crate) fn planned(mesh: Mesh, traffic: &ByGroup) -> String {
    let mut text = String::new();
    let mut lead = "wire";
    for row in rows(mesh, traffic, traffic) {
        let [calls, bytes] = row.predicted;
        let name = row.collective.name();
        let _ =
            writeln!(text, "{lead:<10} {name} along {}: {} in {calls} a step", row.axes, show_bytes(bytes));
        lead = "";
    }
    text
}

/// By collective and axes, as JSON.
pub(crate) fn to_json(mesh: Mesh, traffic: &ByGroup) -> Value {
    let row = |row: Row| {
        let [calls, bytes] = row.predicted;
        json!({"collective": row.collective.name(), "axes": row.axes, "calls": calls, "bytes": bytes})
    };
    rows(mesh, traffic, traffic).into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(bytes: u64) -> ByGroup {
        let mut traffic = ByGroup::default();
        traffic[1].count(Collective::AllGather, bytes);
        traffic[2].count(Collective::AllReduce, 7);
        traffic
    }

    #[test]
    fn a_step_that_moves_other_bytes_than_predicted_is_told_and_kept() {
        let mesh = Mesh::data_parallel(2, 2);
        let mut wire = Wire::new(traffic(100));
        let zero = ByGroup::default();
        wire.step(1, zero, traffic(100));
        assert!(wire.holds() && wire.text(mesh).matches("equal").count() == 2, "{}", wire.text(mesh));
        wire.step(2, zero, traffic(101));
        wire.step(3, zero, traffic(100));
        assert!(!wire.holds() && wire.to_json(mesh)["first_difference"] == 2);
        let text = wire.text(mesh);
        assert!(text.contains("all_gather dp_shard") && text.matches("DIFFERENT").count() == 1, "{text}");
    }

    #[test]
    fn axes_of_one_rank_are_not_spoken_of() {
        let mut all = ByGroup::default();
        all[0].count(Collective::AllReduce, 3 << 20);
        assert_eq!(
            planned(Mesh::data_parallel(1, 4), &all),
            "wire       all_reduce along dp_shard: 3.0 MiB in 1 a step\n"
        );
        let mut twice = all;
        twice[1].count(Collective::AllReduce, 1 << 20);
        assert_eq!(
            planned(Mesh::data_parallel(1, 4), &twice),
            "wire       all_reduce along dp_shard: 4.0 MiB in 2 a step\n"
        );
        let both = planned(Mesh::data_parallel(2, 2), &all);
        assert!(both.contains("along dp_replicate x dp_shard"), "{both}");
        assert_eq!(planned(Mesh::SINGLE, &ByGroup::default()), "");
        assert_eq!(total(&traffic(100)), 107);
    }
}
