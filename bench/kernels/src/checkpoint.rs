//! Saving and loading a checkpoint of a whole model, and the disk's own rate: what `bench/checkpoint` compares with PyTorch.

use crate::{CheckpointArgs, Fault};
use memwall_checkpoint::{Disk, Pace, RunState, Store};
use memwall_cli::job::{self, ModelSource};
use memwall_comm::Groups;
use memwall_engine::{AdamWSettings, Decay, Keep, MicroBatch, Precision, Rank, Schedule, Settings, Zero};
use memwall_model::{ModelConfig, ModelSpec};
use memwall_tensor::{Cpu, Description};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

/// Bytes that are written and read at a time to find the disk's rate.
const PIECE: usize = 4 << 20;

/// Prints one line of JSON: seconds of each thing, and bytes.
pub(crate) fn checkpoint(args: &CheckpointArgs) -> Result<(), Fault> {
    let job = job::load(&args.job, &[])?.validate()?;
    let config = match &job.model {
        ModelSource::ConfigTable(value) => ModelConfig::from_value(value)?,
        _ => return Err("the job has no model.config".into()),
    };
    let settings = Settings {
        micro_batch: 1,
        micro_batches: 1,
        sequence: args.tokens,
        precision: Precision::F32,
        gradients: Precision::F32,
        deterministic: false,
        zero: Zero::None,
        clip: Some(1.0),
        seed: 1,
        keep: Keep::ALL,
        optimizer: AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
        schedule: Schedule { peak: 1e-4, last: 0.0, warmup: 0, steps: 100, decay: Decay::Cosine },
        snapshot: args.snapshot,
    };
    let vocabulary = config.vocab_size as i32;
    let device = Cpu::new(Description { threads: args.threads }, 1 << 36)?;
    let mut rank = Rank::new(device, Groups::solo(), ModelSpec::new(config), settings)?;
    rank.initialize();
    let store = Store::new(&args.folder, 1, Disk::default());
    let train = |rank: &mut Rank<Cpu>| {
        let begin = Instant::now();
        let mut load = |_: usize, b: &mut MicroBatch<'_>| {
            b.tokens.iter_mut().zip(0..).for_each(|(t, i)| *t = i * 7 % vocabulary);
            b.targets.copy_from_slice(b.tokens);
        };
        rank.step(&mut load, args.tokens as u64).map(|_| begin.elapsed().as_secs_f64())
    };
    let step_alone = {
        train(&mut rank)?;
        train(&mut rank)?
    };

    let begin = Instant::now();
    let state = state(&rank);
    let saved = store.begin(&mut rank, &state, Pace::Now)?.finish(&mut rank)?;
    let save = begin.elapsed().as_secs_f64();
    let folder = saved.folder;

    let mut load = || {
        store.load(state.step, &mut rank)?;
        Ok(())
    };
    let warm = timed(&mut load)?;
    forget(&folder)?;
    let cold = timed(&mut load)?;
    let warm_read = timed(|| read(&folder))?;
    forget(&folder)?;
    let cold_read = timed(|| read(&folder))?;

    train(&mut rank)?;
    let state = self::state(&rank);
    let before = rank.stood_still();
    let saving = store.begin(&mut rank, &state, Pace::Background)?;
    let mut beside = Vec::new();
    while !saving.is_over() {
        beside.push(train(&mut rank)?);
    }
    let background = saving.finish(&mut rank)?;
    let stood = (background.stood + rank.stood_still() - before).as_secs_f64();
    fs::remove_dir_all(&args.folder)?;

    let disk = disk(&args.folder, saved.bytes)?;
    println!(
        "{{\"bytes\": {}, \"save\": {save:.4}, \"load_warm\": {warm:.4}, \"load_cold\": {cold:.4}, \"read_warm\": {warm_read:.4}, \
         \"read_cold\": {cold_read:.4}, \"background\": {:.4}, \"stood_still\": {stood:.4}, \"step_alone\": {step_alone:.4}, \
         \"steps_beside\": {beside:.4?}, \"disk\": {disk:.4}}}",
        saved.bytes,
        background.took.as_secs_f64(),
    );
    Ok(())
}

fn state(rank: &Rank<Cpu>) -> RunState {
    let step = rank.steps_done();
    RunState { step, samples: step, tokens: 0, data: "d".into(), job: String::new(), code: String::new() }
}

fn timed(work: impl FnOnce() -> Result<(), Fault>) -> Result<f64, Fault> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Seconds to write so many bytes to one file and have them reach the disk.
fn disk(folder: &Path, bytes: u64) -> Result<f64, Fault> {
    fs::create_dir_all(folder)?;
    let path = folder.join("bytes");
    // Nothing that a disk could make smaller.
    let mut word = 1u64;
    let piece: Vec<u8> = (0..PIECE / 8)
        .flat_map(|_| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.to_le_bytes()
        })
        .collect();
    let seconds = timed(|| {
        let mut file = File::create(&path)?;
        let mut left = bytes as usize;
        while left > 0 {
            let n = left.min(PIECE);
            file.write_all(&piece[..n])?;
            left -= n;
        }
        Ok(file.sync_all()?)
    })?;
    fs::remove_dir_all(folder)?;
    Ok(seconds)
}

/// Reads all files of a folder.
fn read(folder: &Path) -> Result<(), Fault> {
    let mut piece = vec![0; PIECE];
    for entry in fs::read_dir(folder)? {
        let mut file = File::open(entry?.path())?;
        while file.read(&mut piece)? > 0 {}
    }
    Ok(())
}

/// Has the system forget what it keeps of a folder's files in memory.
fn forget(folder: &Path) -> Result<(), Fault> {
    for entry in fs::read_dir(folder)? {
        let file = File::open(entry?.path())?;
        file.sync_all()?;
        // SAFETY: the descriptor is open for as long as the call; the call touches no memory of this process.
        let said = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if said != 0 {
            return Err(std::io::Error::from_raw_os_error(said).into());
        }
    }
    Ok(())
}
