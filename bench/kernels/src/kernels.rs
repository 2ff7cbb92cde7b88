//! Each kernel against its bound: its FLOPs at the peak of arithmetic in registers, or its bytes at the best that memory does,
//! whichever takes longer.

use crate::cases::{self, Kernel, Maker, Sizes, type_name};
use crate::slices::{Timed, Watch, median, raw, repeat};
use crate::{Fault, KernelArgs, cores, quiet, write_markdown};
use memwall_cli::figures::counted;
use memwall_cli::profile::{self, Machine};
use memwall_tensor::{OutOfMemory, Traffic};
use std::fmt::Write;
use std::time::Duration;

/// Address space for the buffers of one kernel; only what is touched takes memory.
const BUFFERS: usize = 4 << 30;

/// A kernel that was timed.
struct Row {
    kernel: Kernel,
    flops: f64,
    bytes: f64,
    slices: Vec<Timed>,
}

pub(crate) fn kernels(args: &KernelArgs) -> Result<(), Fault> {
    let common = &args.common;
    let sizes = if common.tiny { Sizes::tiny() } else { Sizes::full() };
    let threads = match &args.threads[..] {
        [] if cores() > 1 => vec![1, cores()],
        [] => vec![1],
        given => given.to_vec(),
    };
    let header = format!("{}; {}; memwall {}", profile::today(), Machine::this(), env!("CARGO_PKG_VERSION"));
    println!("{header}");
    let mut markdown = format!("{header}.\n");
    for threads in threads {
        markdown.push_str(&at(args, threads, &sizes)?);
    }
    write_markdown(common, &markdown)
}

/// All kernels with so many threads; returns the table in Markdown.
fn at(args: &KernelArgs, threads: usize, sizes: &Sizes) -> Result<String, Fault> {
    quiet::require(&args.common)?;
    let others = quiet::Others::new(&[]);
    let (elements, time) = if args.common.tiny { (1 << 14, 1) } else { (1 << 25, 300) };
    let mut watch = Watch::new(threads)?;
    let mut bandwidth = 0.0f64;
    for traffic in Traffic::ALL {
        bandwidth =
            bandwidth.max(profile::bandwidth(threads, traffic, elements, Duration::from_millis(time))?);
    }
    let mut rows = Vec::new();
    for kernel in cases::all(sizes).into_iter().filter(|k| k.name.contains(&args.only)) {
        rows.push(time_kernel(args, threads, kernel, &mut watch)?);
    }
    let others = others.cores();
    let peak = watch.full();
    let bounds = format!(
        "{}: arithmetic {:.1} GFLOP/s, memory {:.1} GB/s; other processes used {others:.2} cores",
        counted(threads, "thread"),
        peak / 1e9,
        bandwidth / 1e9
    );
    println!("\n{bounds}");
    println!(
        "{:36} {:>30} {:>5} {:>10} {:>9}  share of the bound; slices, ms",
        "kernel", "size", "type", "ms", "rate"
    );
    let mut markdown = format!(
        "\n{bounds}.\n\n| kernel | size | type | ms | rate | bound | share of the bound |\n|---|---|---|---|---|---|---|\n"
    );
    for row in &rows {
        row.print(bandwidth, &mut markdown);
    }
    Ok(markdown)
}

fn time_kernel(args: &KernelArgs, threads: usize, kernel: Kernel, watch: &mut Watch) -> Result<Row, Fault> {
    let device = profile::device(threads, BUFFERS)?;
    let refused = |e: OutOfMemory| format!("{}: {e}", kernel.name);
    let mut case = (kernel.build)(Maker { device: &device }).map_err(refused)?;
    (case.run)();
    let time = Duration::from_millis(if args.common.tiny { 0 } else { 20 });
    let mut slices = vec![Vec::new()];
    watch.enough(args.common.rounds, &mut slices, |watch, slices| {
        slices[0].push(watch.slice(Duration::ZERO, || Ok(repeat(time, &mut case.run)))?);
        Ok(())
    })?;
    let slices = slices.remove(0);
    let (flops, bytes) = (case.flops, case.bytes);
    drop(case);
    Ok(Row { kernel, flops, bytes, slices })
}

impl Row {
    /// Prints the row, and adds it to the table in Markdown.
    fn print(&self, bandwidth: f64, markdown: &mut String) {
        let Kernel { name, size, dtype, .. } = &self.kernel;
        let dtype = type_name(*dtype);
        let (arithmetic, memory) = (self.flops / self.slices[0].full, self.bytes / bandwidth);
        let (bound, by) = if arithmetic > memory { (arithmetic, "arithmetic") } else { (memory, "memory") };
        let (median, _) = median(&self.slices);
        let raw = raw(&self.slices);
        let Some(seconds) = median else {
            println!("{name:36} {size:>30} {dtype:>5} {:>10} {:>9}     no slice counts; {raw}", "-", "-");
            let _ = writeln!(markdown, "| {name} | {size} | {dtype} | | | {by} | no slice counts |");
            return;
        };
        let rate = if by == "memory" {
            format!("{:.1} GB/s", self.bytes / seconds / 1e9)
        } else {
            format!("{:.1} GFLOP/s", self.flops / seconds / 1e9)
        };
        let (ms, share) = (1e3 * seconds, 100.0 * bound / seconds);
        println!("{name:36} {size:>30} {dtype:>5} {ms:10.3} {rate:>14} {share:4.0}% of {by}; {raw}");
        let _ = writeln!(markdown, "| {name} | {size} | {dtype} | {ms:.3} | {rate} | {by} | {share:.0}% |");
    }
}
