//! One side of the comparison of matrix products, in a process of its own: reads a line "nt M N K CALLS", answers
//! "SECONDS FIRST MIDDLE LAST" (seconds of one call, and three elements of the result).

use crate::cases::{Buf, Maker};
use crate::library::Library;
use crate::{Fault, WorkerArgs};
use memwall_cli::profile::{self, LAYOUTS};
use memwall_tensor::device::{Epilogue, Linear, MatmulDims, MatmulLayout, Memory};
use memwall_tensor::{Cpu, DType, Slice, SliceMut};
use std::io::{BufRead, Write};
use std::time::Instant;

/// Address space for operands; only what is touched takes memory.
const BUFFERS: usize = 2 << 30;

/// The operands, and who multiplies them.
enum Side<'d> {
    Memwall(&'d Cpu, [Buf; 3]),
    Library(Library, [Vec<f32>; 3]),
}

impl Side<'_> {
    /// Operands of these sizes, the same on both sides.
    fn prepare(&mut self, make: Maker<'_>, d: MatmulDims) -> Result<(), Fault> {
        let (a, b) = (make.values(d.m * d.k, DType::F32)?, make.values(d.n * d.k, DType::F32)?);
        match self {
            Side::Memwall(_, operands) => *operands = [a, b, make.zeros(d.m * d.n, DType::F32)?],
            Side::Library(_, operands) => {
                let read = |x: &Buf| make.device.read_f32(Slice::all(x));
                *operands = [read(&a), read(&b), vec![0.0; d.m * d.n]];
            }
        }
        Ok(())
    }

    fn multiply(&mut self, layout: MatmulLayout, d: MatmulDims) {
        match self {
            Side::Memwall(device, [a, b, c]) => {
                device.matmul(layout, d, Slice::all(a), Slice::all(b), SliceMut::all(c), Epilogue::store());
            }
            Side::Library(library, [a, b, c]) => library.matmul(layout, d, a, b, c),
        }
    }

    /// The first, the middle and the last element of the result.
    fn elements(&self) -> [f32; 3] {
        let pick = |c: &[f32]| [c[0], c[c.len() / 2], c[c.len() - 1]];
        match self {
            Side::Memwall(device, [_, _, c]) => pick(&device.read_f32(Slice::all(c))),
            Side::Library(_, [_, _, c]) => pick(c),
        }
    }
}

/// Answers until the parent closes the pipe.
pub(crate) fn serve(args: &WorkerArgs) -> Result<(), Fault> {
    let device = profile::device(args.threads, BUFFERS)?;
    let make = Maker { device: &device };
    let mut side = match &args.library {
        Some(path) => Side::Library(Library::open(path)?, Default::default()),
        None => {
            let empty = || make.zeros(0, DType::F32);
            Side::Memwall(&device, [empty()?, empty()?, empty()?])
        }
    };
    let mut prepared = None;
    for line in std::io::stdin().lock().lines() {
        let (layout, d, calls) = parse(&line?)?;
        if prepared != Some(d) {
            side.prepare(make, d)?;
            prepared = Some(d);
        }
        let start = Instant::now();
        for _ in 0..calls {
            side.multiply(layout, d);
        }
        let seconds = start.elapsed().as_secs_f64() / f64::from(calls);
        let [first, middle, last] = side.elements();
        println!("{seconds:e} {first:e} {middle:e} {last:e}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn parse(line: &str) -> Result<(MatmulLayout, MatmulDims, u32), Fault> {
    let fault = || format!("{line:?} is not a layout, three sizes and a number of calls");
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [name, m, n, k, calls] = fields[..] else { return Err(fault().into()) };
    let (layout, _) = LAYOUTS.into_iter().find(|(_, l)| *l == name).ok_or_else(fault)?;
    Ok((layout, MatmulDims { m: m.parse()?, n: n.parse()?, k: k.parse()? }, calls.parse()?))
}
