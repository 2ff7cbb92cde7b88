//! Loading a checkpoint into a rank: read, hashed and put into place in one pass, by all of the rank's threads.

use crate::error::CheckpointError;
use crate::hash::Hash;
use crate::manifest::{Manifest, TensorRecord};
use crate::parts::{Whole, by_kind, tensors};
use crate::pieces::Pieces;
use crate::save::together;
use crate::write::on_threads;
use memwall_engine::{Part, Rank};
use memwall_model::ParamId;
use memwall_tensor::device::Device;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// A tensor of one file that this rank reads.
struct Job<'a> {
    pieces: &'a Pieces,
    file: usize,
    name: &'a str,
    /// Which elements of the whole tensor the file has.
    range: Range<usize>,
    /// Which of them the rank holds.
    wanted: Range<usize>,
    /// What the hash must be, where it is this rank that looks.
    record: Option<&'a TensorRecord>,
    part: Part,
    param: ParamId,
}

/// Elements of a parameter's state on their way into place.
struct Arrived {
    part: Part,
    param: ParamId,
    /// Number of the first in the whole tensor.
    first: usize,
    /// The elements are these of `values`.
    within: Range<usize>,
    values: Vec<f32>,
}

/// Fills what a rank holds. Of the files' tensors each rank of the world hashes its share.
pub(crate) fn load<D: Device>(
    folder: &Path,
    manifest: &Manifest,
    rank: &mut Rank<D>,
) -> Result<(), CheckpointError> {
    let kinds: Vec<(Vec<Whole>, Pieces)> = by_kind(&manifest.files)
        .map(|(kind, records)| {
            let wholes = tensors(rank.spec(), kind);
            let pieces = Pieces::open(folder, records, &wholes)?;
            Ok((wholes, pieces))
        })
        .collect::<Result<_, CheckpointError>>()?;
    let (world, own) = (rank.groups().mesh.world(), rank.groups().rank);
    let mut jobs = Vec::new();
    let mut number = 0;
    for (wholes, pieces) in &kinds {
        for Whole { part, param, entry } in wholes {
            let held = rank.held(*part, *param);
            for (file, range) in pieces.parts_of(&entry.name) {
                let wanted = range.start.max(held.start)..range.end.min(held.end);
                let looks = number % world == own;
                number += 1;
                if looks || !wanted.is_empty() {
                    let record = looks.then(|| pieces.record(*file, &entry.name)).flatten();
                    let (part, param, name) = (*part, *param, &*entry.name);
                    jobs.push(Job {
                        pieces,
                        file: *file,
                        name,
                        range: range.clone(),
                        wanted,
                        record,
                        part,
                        param,
                    });
                }
            }
        }
    }
    read(&jobs, rank)?;
    together(rank)
}

fn read<D: Device>(jobs: &[Job<'_>], rank: &mut Rank<D>) -> Result<(), CheckpointError> {
    let threads = rank.device().description().threads.max(1);
    let (arrive, arrived) = sync_channel::<Arrived>(2 * threads);
    let (give_back, free) = channel::<Vec<f32>>();
    let (next, failed, free) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(free));
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let arrive = arrive;
            on_threads(threads, &|| {
                let arrive = arrive.clone();
                while !failed.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(number) else { break };
                    // What comes next is on its way from the disk meanwhile.
                    jobs.iter().skip(number).take(1 + threads).for_each(Job::announce);
                    job.read(&arrive, &free).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                }
                Ok(())
            })
        });
        for Arrived { part, param, first, within, values } in arrived {
            let held = rank.held(part, param).start;
            let (device, dst) = rank.part_mut(part, param);
            device.write_floats(dst.part(first - held, within.len()), &values[within]);
            // Once all are read nobody takes them.
            let _ = give_back.send(values);
        }
        reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl Job<'_> {
    /// The elements that are read: who looks at the hash reads all.
    fn all(&self) -> Range<usize> {
        if self.record.is_some() { self.range.clone() } else { self.wanted.clone() }
    }

    fn announce(&self) {
        let (all, start) = (self.all(), self.range.start);
        self.pieces.file(self.file).announce(self.name, all.start - start..all.end - start);
    }

    fn read(
        &self,
        arrive: &SyncSender<Arrived>,
        free: &Mutex<Receiver<Vec<f32>>>,
    ) -> Result<(), CheckpointError> {
        let Self { range, wanted, .. } = self;
        let all = self.all();
        let mut elements =
            self.pieces.file(self.file).elements(self.name)?.from(all.start - range.start, all.len());
        let (mut at, mut hash) = (all.start, Hash::default());
        while let Some(chunk) = elements.next()? {
            if self.record.is_some() {
                hash.update(chunk.stored);
            }
            let n = chunk.values.len();
            let (start, end) = (at.max(wanted.start), (at + n).min(wanted.end));
            if start < end {
                let other = free.lock().unwrap_or_else(PoisonError::into_inner).try_recv();
                let values = elements.exchange(other.unwrap_or_default());
                let within = start - at..end - at;
                // The receiver is there until all senders have gone.
                let _ =
                    arrive.send(Arrived { part: self.part, param: self.param, first: start, within, values });
            }
            at += n;
        }
        match self.record {
            Some(record) if hash.finish() != record.xxh3 => Err(self.pieces.damaged(self.file, self.name)),
            _ => Ok(()),
        }
    }
}
