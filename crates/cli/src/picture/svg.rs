//! The picture as a self-contained SVG: bytes by category, stacked, over the events of a step.

use super::{Timeline, moment_name, phase_name, unit_name};
use crate::job::show_bytes;
use crate::report;
use crate::setup::Setup;
use memwall_tensor::{ByCategory, Category, Phase};
use std::fmt::Write;

const WIDTH: f64 = 1140.0;
const HEIGHT: f64 = 560.0;
/// Edges of the plot.
const LEFT: f64 = 84.0;
const RIGHT: f64 = 896.0;
const TOP: f64 = 96.0;
const BOTTOM: f64 = 480.0;
/// Columns that events are merged to, where there are more: each shows its highest.
const COLUMNS: usize = 800;

/// A category's colour: Paul Tol's bright scheme, which colour-blind people can tell apart, and two of his muted ones.
fn colour(c: Category) -> &'static str {
    match c {
        Category::Weights => "#4477aa",
        Category::MasterWeights => "#66ccee",
        Category::Gradients => "#228833",
        Category::OptimizerState => "#ccbb44",
        Category::Activations => "#ee6677",
        Category::Gathered => "#aa3377",
        Category::Communication => "#999999",
        Category::Workspace => "#882255",
        Category::Data => "#332288",
    }
}

/// A column of the picture: where it begins and ends, and what is alive in it.
struct Column {
    from: f64,
    to: f64,
    live: ByCategory,
}

/// A phase's place, with those of its units.
struct Span {
    phase: Phase,
    from: f64,
    to: f64,
    units: Vec<(u32, f64, f64)>,
}

struct Canvas<'a> {
    setup: &'a Setup,
    timeline: &'a Timeline,
    columns: Vec<Column>,
    spans: Vec<Span>,
    /// Bytes at the upper edge.
    top: f64,
    out: String,
}

/// Draws it.
pub(crate) fn svg(setup: &Setup, timeline: &Timeline) -> String {
    let (columns, spans) = layout(timeline);
    let peak = timeline.peak.1.total();
    let budget = Some(setup.budget).filter(|b| *b >= peak && (*b as f64) < 1.35 * peak as f64);
    let top = 1.06 * budget.unwrap_or(peak) as f64;
    let mut canvas = Canvas { setup, timeline, columns, spans, top, out: String::new() };
    let _ = writeln!(
        canvas.out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>"
    );
    canvas.title();
    canvas.axis();
    canvas.areas();
    canvas.phases();
    canvas.budget(budget);
    canvas.peak();
    canvas.legend();
    canvas.out.push_str("</svg>\n");
    canvas.out
}

/// Gives every event its place. The optimizer's step, in which nothing is allocated, gets a width that can be seen.
fn layout(t: &Timeline) -> (Vec<Column>, Vec<Span>) {
    let events: usize = t.parts.iter().filter(|p| p.phase != Phase::Optimizer).map(|p| p.points.len()).sum();
    let still = (events as f64 / 16.0).max(1.0);
    let weight = |phase: Phase| if phase == Phase::Optimizer { still } else { 1.0 };
    let whole: f64 = t.parts.iter().map(|p| p.points.len() as f64 * weight(p.phase)).sum();
    let each = (RIGHT - LEFT) / whole.max(1.0);
    let merge = events.div_ceil(COLUMNS).max(1);
    let (mut columns, mut spans, mut x) = (Vec::new(), Vec::new(), LEFT);
    for part in &t.parts {
        let (from, width) = (x, each * weight(part.phase));
        for points in part.points.chunks(merge) {
            let live = points.iter().map(|(_, live)| *live).max_by_key(ByCategory::total).unwrap_or_default();
            let to = x + width * points.len() as f64;
            columns.push(Column { from: x, to, live });
            x = to;
        }
        let mut at = from;
        let units = part.units().map(|(unit, points)| {
            let start = at;
            at += width * points.len() as f64;
            (unit, start, at)
        });
        spans.push(Span { phase: part.phase, from, units: units.collect(), to: x });
    }
    (columns, spans)
}

impl Canvas<'_> {
    fn y(&self, bytes: u64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * bytes as f64 / self.top
    }

    fn text(&mut self, x: f64, y: f64, attributes: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(self.out, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{text}</text>");
    }

    fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], attributes: &str) {
        let _ = writeln!(
            self.out,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {attributes}/>"
        );
    }

    fn title(&mut self) {
        let c = &self.setup.spec.config;
        let (s, job) = (&self.setup.settings, &self.setup.job);
        let title = format!(
            "Memory over one step: {}, {} parameters",
            c.family.model_type(),
            report::count(self.setup.spec.parameter_count() as f64)
        );
        let batches = match s.micro_batches {
            1 => "one micro-batch".to_owned(),
            n => format!("one of {n} micro-batches, which are alike,"),
        };
        let precision = report::precision(job.precision.mode);
        let detail = format!(
            "{batches} of {} x {} tokens, {precision}, recompute {}; predicted for rank 0 of 1",
            s.micro_batch,
            s.sequence,
            report::recompute(job.memory.recompute)
        );
        self.text(LEFT, 32.0, "font-size=\"18\" font-weight=\"bold\" fill=\"#222\"", &title);
        self.text(LEFT, 54.0, "fill=\"#555\"", &detail);
    }

    /// Bytes on the left, at round numbers.
    fn axis(&mut self) {
        let unit = [1u64 << 40, 1 << 30, 1 << 20, 1 << 10].into_iter().find(|u| *u as f64 * 2.0 <= self.top);
        let unit = unit.unwrap_or(1) as f64;
        let rough = self.top / unit / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= rough).unwrap_or(rough);
        let mut tick = 0.0;
        while tick * unit <= self.top {
            let y = self.y((tick * unit) as u64);
            self.line([LEFT, y, RIGHT, y], "stroke=\"#e4e4e4\"");
            let label = match tick {
                0.0 => "0".to_owned(),
                _ => show_bytes((tick * unit) as u64).replace(".00 ", " ").replace(".0 ", " "),
            };
            self.text(LEFT - 8.0, y + 4.0, "text-anchor=\"end\" fill=\"#444\"", &label);
            tick += step;
        }
    }

    /// One area for each category, the first at the bottom.
    fn areas(&mut self) {
        let mut below = vec![0u64; self.columns.len()];
        for category in self.timeline.categories() {
            let above: Vec<u64> =
                below.iter().zip(&self.columns).map(|(b, c)| b + c.live[category]).collect();
            let mut path = String::new();
            for (i, (column, bytes)) in self.columns.iter().zip(&above).enumerate() {
                let command = if i == 0 { 'M' } else { 'L' };
                let y = self.y(*bytes);
                let _ = write!(path, "{command}{:.1} {y:.1}L{:.1} {y:.1}", column.from, column.to);
            }
            for (column, bytes) in self.columns.iter().zip(&below).rev() {
                let y = self.y(*bytes);
                let _ = write!(path, "L{:.1} {y:.1}L{:.1} {y:.1}", column.to, column.from);
            }
            let _ = writeln!(
                self.out,
                "<path d=\"{path}Z\" fill=\"{}\"><title>{}</title></path>",
                colour(category),
                category.name()
            );
            below = above;
        }
    }

    /// Names of phases above, of units below.
    fn phases(&mut self) {
        let mut units: Vec<(String, f64)> = Vec::new();
        for span in std::mem::take(&mut self.spans) {
            let middle = (span.from + span.to) / 2.0;
            self.line(
                [span.from, TOP - 18.0, span.from, BOTTOM + 6.0],
                "stroke=\"#888\" stroke-dasharray=\"2 3\"",
            );
            self.line(
                [span.to, TOP - 18.0, span.to, BOTTOM + 6.0],
                "stroke=\"#888\" stroke-dasharray=\"2 3\"",
            );
            let name = phase_name(span.phase);
            // A name that is wider than its phase goes in two lines.
            let narrow = 7.0 * name.len() as f64 > span.to - span.from;
            for (i, word) in
                if narrow { name.split(' ').rev().collect() } else { vec![&*name] }.iter().enumerate()
            {
                let y = TOP - 8.0 - 14.0 * i as f64;
                self.text(middle, y, "text-anchor=\"middle\" font-weight=\"bold\" fill=\"#333\"", word);
            }
            for (unit, from, to) in span.units {
                self.line([from, BOTTOM, from, BOTTOM + 5.0], "stroke=\"#888\"");
                units.push((unit_name(&self.setup.spec, unit), (from + to) / 2.0));
            }
        }
        // Embedding and head first, then as many numbers of blocks as there is room for.
        let (blocks, ends): (Vec<_>, Vec<_>) =
            units.into_iter().partition(|(name, _)| name.starts_with("block "));
        let mut placed: Vec<(f64, f64)> = Vec::new();
        for (name, x) in ends.iter().chain(&blocks) {
            let name = name.strip_prefix("block ").unwrap_or(name);
            let half = 3.3 * name.len() as f64 + 3.0;
            if placed.iter().all(|(from, to)| x + half <= *from || x - half >= *to) {
                self.text(*x, BOTTOM + 18.0, "text-anchor=\"middle\" font-size=\"11\" fill=\"#555\"", name);
                placed.push((x - half, x + half));
            }
        }
        self.line([LEFT, BOTTOM, RIGHT, BOTTOM], "stroke=\"#444\"");
        let below = "takes and gives back, in order; the units at work: embedding, blocks by number, head";
        self.text((LEFT + RIGHT) / 2.0, BOTTOM + 42.0, "text-anchor=\"middle\" fill=\"#555\"", below);
    }

    fn budget(&mut self, budget: Option<u64>) {
        if let Some(budget) = budget {
            let y = self.y(budget);
            self.line([LEFT, y, RIGHT, y], "stroke=\"#c00\" stroke-width=\"1.5\" stroke-dasharray=\"7 4\"");
            let text = format!("budget {}", show_bytes(budget));
            self.text(RIGHT - 6.0, y - 5.0, "text-anchor=\"end\" fill=\"#c00\"", &text);
        }
    }

    fn peak(&mut self) {
        let (moment, live) = self.timeline.peak;
        let Some(at) = self.columns.iter().find(|c| c.live.total() == live.total()) else { return };
        let (x, y) = ((at.from + at.to) / 2.0, self.y(live.total()));
        let _ = writeln!(
            self.out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"#fff\" stroke=\"#111\" stroke-width=\"2\"/>"
        );
        let text =
            format!("Peak: {}, in {}", show_bytes(live.total()), moment_name(&self.setup.spec, moment));
        self.text(LEFT, HEIGHT - 14.0, "font-weight=\"bold\" fill=\"#111\"", &text);
    }

    /// Categories, the uppermost first, with what they take at the peak.
    fn legend(&mut self) {
        let x = RIGHT + 24.0;
        self.text(x, TOP - 8.0, "font-weight=\"bold\" fill=\"#333\"", "at the peak");
        let mut y = TOP + 12.0;
        for category in self.timeline.categories().into_iter().rev() {
            let bytes = self.timeline.peak.1[category];
            let _ = writeln!(
                self.out,
                "<rect x=\"{x}\" y=\"{:.1}\" width=\"13\" height=\"13\" rx=\"2\" fill=\"{}\"/>",
                y - 11.0,
                colour(category)
            );
            self.text(x + 20.0, y, "fill=\"#222\"", &category.name().replace('_', " "));
            self.text(WIDTH - 14.0, y, "text-anchor=\"end\" fill=\"#222\"", &show_bytes(bytes));
            y += 22.0;
        }
        self.line([x, y - 14.0, WIDTH - 14.0, y - 14.0], "stroke=\"#bbb\"");
        self.text(x + 20.0, y + 3.0, "font-weight=\"bold\" fill=\"#222\"", "total");
        let total = show_bytes(self.timeline.peak.1.total());
        self.text(WIDTH - 14.0, y + 3.0, "text-anchor=\"end\" font-weight=\"bold\" fill=\"#222\"", &total);
    }
}
