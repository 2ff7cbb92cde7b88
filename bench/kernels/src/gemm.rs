//! Matrix products of memwall and of a library of the BLAS kind: each side in a process of its own, in short slices in turns.

use crate::cases::{Model, Product, product_flops, products};
use crate::slices::{Timed, Watch, median, raw};
use crate::{Common, Fault, GemmArgs, cores, library, quiet, write_markdown};
use memwall_cli::figures::counted;
use memwall_cli::profile::{self, Machine};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// What a slice should last, seconds.
const SLICE: f64 = 0.03;
/// Time for a library's threads to stop waiting busily.
const PAUSE: Duration = Duration::from_millis(4);

/// A side's process.
struct Worker {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(library: Option<&Path>, threads: usize) -> Result<Self, Fault> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "--threads", &threads.to_string()]);
        let name = match library {
            None => "memwall".to_owned(),
            Some(path) => {
                command.arg("--library").arg(path);
                // What it depends on lies beside it.
                command.env("LD_LIBRARY_PATH", path.parent().unwrap_or(Path::new(".")));
                path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
            }
        };
        for variable in ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"] {
            command.env(variable, threads.to_string());
        }
        command.env("MKL_DYNAMIC", "FALSE").env("OMP_DYNAMIC", "FALSE");
        command.env("KMP_AFFINITY", "granularity=fine,compact");
        // Threads that wait busily for longer than this would disturb the other side's slice.
        command.env("KMP_BLOCKTIME", "1").env("OPENBLAS_THREAD_TIMEOUT", "20");
        for variable in ["OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_ENABLE_INSTRUCTIONS"] {
            command.env_remove(variable);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        Ok(Self { name, child, input, output })
    }

    /// Seconds of one call, and elements of the result.
    fn multiply(&mut self, p: &Product, calls: u32) -> Result<(f64, [f32; 3]), Fault> {
        let d = p.dims;
        let input = self.input.as_mut().expect("it is open until the end");
        writeln!(input, "{} {} {} {} {calls}", p.layout_name, d.m, d.n, d.k)?;
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(format!("the process of {} has ended", self.name).into());
        }
        let fields = line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>()?;
        let [seconds, a, b, c] = fields[..] else {
            return Err(format!("{} answered {line:?}", self.name).into());
        };
        Ok((seconds, [a as f32, b as f32, c as f32]))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends when its input does.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

pub(crate) fn gemm(args: &GemmArgs) -> Result<(), Fault> {
    let common = &args.common;
    let machine = Machine::this();
    let threads = args.threads.unwrap_or_else(cores);
    if threads > cores() {
        return Err(
            format!("--threads is 1 to {}: more than one a core would measure waiting", cores()).into()
        );
    }
    library::pin(threads)?;
    quiet::require(common)?;
    let mut watch = Watch::new(threads)?;
    let mut workers = vec![Worker::start(None, threads)?];
    if let Some(path) = &args.library {
        workers.push(Worker::start(Some(path), threads)?);
    }
    let ids: Vec<u32> = workers.iter().map(|w| w.child.id()).collect();
    let others = quiet::Others::new(&ids);
    let model = if common.tiny { Model::TINY } else { Model::S };
    let mut rows = Vec::new();
    for product in products(&model) {
        let slices = compare(common, &mut watch, &mut workers, &product)?;
        rows.push((product, slices));
    }
    let others = others.cores();
    let header = format!(
        "{}; {machine}; memwall {}; model {}, f32, {}; arithmetic {:.1} GFLOP/s; other processes used \
         {others:.2} cores",
        profile::today(),
        env!("CARGO_PKG_VERSION"),
        model.name,
        counted(threads, "thread"),
        watch.full() / 1e9
    );
    println!("{header}");
    let names: Vec<&str> = workers.iter().map(|w| &*w.name).collect();
    write_markdown(common, &format!("{header}.\n\n{}", table(&names, &rows)))
}

/// Slices of each side, in turns.
fn compare(
    common: &Common,
    watch: &mut Watch,
    workers: &mut [Worker],
    product: &Product,
) -> Result<Vec<Vec<Timed>>, Fault> {
    let mut calls = Vec::new();
    let mut results = Vec::new();
    for worker in &mut *workers {
        worker.multiply(product, 1)?;
        let (seconds, result) = worker.multiply(product, 1)?;
        calls.push((SLICE / seconds).clamp(1.0, 1e6) as u32);
        results.push(result);
    }
    // Sums of k products of values of size 1/2, in another order.
    let tolerance = 1e-5 * (product.dims.k as f32).sqrt();
    let differ = |other: &[f32; 3]| results[0].iter().zip(other).any(|(a, b)| (a - b).abs() > tolerance);
    if results.iter().any(differ) {
        return Err(format!("the sides do not compute the same: {product:?} gives {results:?}").into());
    }
    let mut slices = vec![Vec::new(); workers.len()];
    watch.enough(common.rounds, &mut slices, |watch, slices| {
        for ((worker, &calls), slices) in workers.iter_mut().zip(&calls).zip(slices) {
            let calls = if common.tiny { 1 } else { calls };
            slices.push(watch.slice(PAUSE, || Ok(worker.multiply(product, calls)?.0))?);
        }
        Ok(())
    })?;
    Ok(slices)
}

/// Prints a row a product with all slices; returns the table in Markdown, with totals weighted by FLOPs.
fn table(names: &[&str], rows: &[(Product, Vec<Vec<Timed>>)]) -> String {
    let against = names.len() > 1;
    let mut text = format!(
        "| product | a step | {} |",
        names.iter().map(|n| format!("{n}, GFLOP/s")).collect::<Vec<_>>().join(" | ")
    );
    text.push_str(if against { " memwall is | slices that count |\n" } else { " slices that count |\n" });
    text.push_str(&"|---".repeat(3 + names.len() + usize::from(against)));
    text.push_str("|\n");
    let mut totals = ["nt", "nn", "tn", "all"].map(|layout| Total::new(layout, names.len()));
    for (p, slices) in rows {
        let size = format!("{} {} x {} x {}", p.layout_name, p.dims.m, p.dims.n, p.dims.k);
        let medians: Vec<_> = slices.iter().map(|s| median(s)).collect();
        for (name, slices) in names.iter().zip(slices) {
            println!("{size:26} {name:>20}: ms {}", raw(slices));
        }
        let seconds: Option<Vec<f64>> = medians.iter().map(|(median, _)| *median).collect();
        let counted = medians.iter().map(|(_, n)| n.to_string()).collect::<Vec<_>>().join(", ");
        for total in totals.iter_mut().filter(|t| [p.layout_name, "all"].contains(&t.layout)) {
            total.add(p, seconds.as_deref());
        }
        text.push_str(&line(
            &size,
            &format!("{} x", p.count),
            product_flops(p),
            seconds,
            names.len(),
            &counted,
        ));
    }
    for t in totals {
        let name = if t.layout == "all" { "**whole step**".to_owned() } else { format!("**{}**", t.layout) };
        text.push_str(&line(&name, "by FLOPs", t.flops, t.seconds, names.len(), ""));
    }
    println!("\n{text}");
    text
}

/// What products of a layout take in a step.
struct Total {
    layout: &'static str,
    flops: f64,
    /// Of each side; `None` once a product has no slice that counts.
    seconds: Option<Vec<f64>>,
}

impl Total {
    fn new(layout: &'static str, sides: usize) -> Self {
        Self { layout, flops: 0.0, seconds: Some(vec![0.0; sides]) }
    }

    fn add(&mut self, p: &Product, seconds: Option<&[f64]>) {
        self.flops += p.count as f64 * product_flops(p);
        self.seconds = self.seconds.take().zip(seconds).map(|(sums, seconds)| {
            sums.iter().zip(seconds).map(|(sum, s)| sum + p.count as f64 * s).collect()
        });
    }
}

fn line(
    name: &str,
    count: &str,
    flops: f64,
    seconds: Option<Vec<f64>>,
    sides: usize,
    counted: &str,
) -> String {
    let mut line = format!("| {name} | {count} |");
    match &seconds {
        Some(seconds) => seconds.iter().for_each(|s| line += &format!(" {:.1} |", flops / s / 1e9)),
        None => line += &" too few slices |".repeat(sides),
    }
    match (seconds.as_deref(), sides) {
        (Some([ours, theirs]), _) => line += &format!(" {:.2} x |", theirs / ours),
        (None, 2) => line += " |",
        _ => {}
    }
    line + &format!(" {counted} |\n")
}
