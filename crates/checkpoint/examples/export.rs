//! Reads a model folder and writes it again, in another type and in files of another size; for comparisons with other
//! implementations.
//!
//!     cargo run --release -p memwall-checkpoint --example export -- MODEL_FOLDER NEW_FOLDER float32|bfloat16|float16 BYTES

use memwall_checkpoint::{Disk, Export, FloatType, ModelFile, write_model};
use memwall_comm::Groups;
use memwall_engine::{AdamWSettings, Decay, Keep, Precision, Rank, Schedule, Settings, Zero};
use memwall_model::{ModelConfig, ModelSpec};
use memwall_tensor::{Cpu, Description};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, dtype, bytes] = &args[..] else {
        return Err("usage: export MODEL_FOLDER NEW_FOLDER float32|bfloat16|float16 BYTES".into());
    };
    let types = [FloatType::F32, FloatType::BF16, FloatType::F16];
    let dtype = types.into_iter().find(|t| t.name() == dtype).ok_or("no such type")?;
    let config = std::fs::read_to_string(Path::new(from).join("config.json"))?;
    let spec = ModelSpec::new(ModelConfig::from_json(&config)?);
    let file = ModelFile::open(Path::new(from), &spec)?;
    // What a rank trains with does not matter to one that only holds weights.
    let settings = Settings {
        precision: Precision::F32,
        gradients: Precision::F32,
        micro_batch: 1,
        micro_batches: 1,
        sequence: 1,
        deterministic: false,
        zero: Zero::None,
        clip: None,
        seed: 0,
        keep: Keep::ALL,
        optimizer: AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0 },
        schedule: Schedule { peak: 0.0, last: 0.0, warmup: 0, steps: 1, decay: Decay::Constant },
    };
    let device = Cpu::new(Description { threads: 1 }, 1 << 34)?;
    let mut rank = Rank::new(device, Groups::solo(), spec, settings)?;
    file.load(&mut rank)?;
    let export = Export {
        dtype,
        max_shard_bytes: bytes.parse()?,
        end_of_document: None,
        generation_config: file.generation_config(),
    };
    write_model(&Disk::default(), Path::new(to), &mut &rank, &export)?;
    Ok(())
}
