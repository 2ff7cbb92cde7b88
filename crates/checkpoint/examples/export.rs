//! Reads a model folder and writes it again, in another type and in files of another size; for comparisons with other
//! implementations.
//!
//!     cargo run --release -p memwall-checkpoint --example export -- MODEL_FOLDER NEW_FOLDER float32|bfloat16|float16 BYTES

use memwall_checkpoint::{Disk, Export, FloatType, ModelFile, ModelWeights, write_model};
use memwall_model::{ModelConfig, ModelSpec};
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
    let export = Export {
        dtype,
        max_shard_bytes: bytes.parse()?,
        end_of_document: None,
        generation_config: file.generation_config(),
    };
    write_model(&Disk::default(), Path::new(to), &mut ModelWeights::new(&file, &spec), &export)?;
    Ok(())
}
