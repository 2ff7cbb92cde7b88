//! Prints the logits of every position of a sequence of token ids, a JSON array a line; for comparisons with other
//! implementations.
//!
//!     cargo run --release -p memwall-checkpoint --example logits -- MODEL_FOLDER 1 2 3

use memwall_checkpoint::ModelFile;
use memwall_engine::Generator;
use memwall_model::{ModelConfig, ModelSpec};
use memwall_tensor::{Cpu, Description};
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or("usage: logits MODEL_FOLDER ID...")?);
    let ids: Vec<i32> = args.map(|a| a.parse()).collect::<Result<_, _>>()?;
    let spec = ModelSpec::new(ModelConfig::from_json(&std::fs::read_to_string(folder.join("config.json"))?)?);
    let file = ModelFile::open(&folder, &spec)?;
    let mut model = Generator::new(Cpu::new(Description { threads: 2 }, 1 << 34)?, &spec, ids.len())?;
    file.load(&mut model)?;
    for id in ids {
        println!("{}", serde_json::to_string(&model.read(&[id])?)?);
    }
    Ok(())
}
