//! Model folders that an independent implementation wrote.

use memwall_checkpoint::ModelFile;
use memwall_model::{ModelConfig, ModelSpec, ParamId};
use memwall_tensor::device::Memory;
use memwall_tensor::{Category, Cpu, DType, Description, Slice, SliceMut};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

fn reference(name: &str) -> (PathBuf, ModelSpec) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/reference").join(name);
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    (folder, ModelSpec::new(ModelConfig::from_json(&config).unwrap()))
}

#[test]
fn every_tensor_is_read_into_place_to_the_bit() {
    let device = Cpu::new(Description { threads: 1 }, 16 << 20).unwrap();
    for name in ["llama_gqa_untied", "llama_gqa_tied", "llama_mha_headdim_rope3"] {
        let (folder, spec) = reference(name);
        let file = ModelFile::open(&folder, &spec).unwrap();
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let whole = SafeTensors::deserialize(&bytes).unwrap();
        for (i, p) in spec.params.iter().enumerate() {
            let mut buf = device.alloc(p.len(), DType::F32, Category::Weights).unwrap();
            file.read(ParamId(i), &device, 0, SliceMut::all(&mut buf)).unwrap();
            let mut read = vec![0u8; p.len() * 4];
            device.read(Slice::all(&buf), &mut read);
            assert_eq!(read, whole.tensor(&p.name).unwrap().data(), "{name}: {}", p.name);
        }
    }
}

#[test]
fn a_file_of_another_model_is_refused_by_names_and_shapes() {
    let (folder, _) = reference("llama_gqa_tied");
    let (_, untied) = reference("llama_gqa_untied");
    let e = ModelFile::open(&folder, &untied).unwrap_err().to_string();
    assert!(e.contains("lm_head.weight is missing"), "{e}");
    let (_, other) = reference("llama_mha_headdim_rope3");
    let e = ModelFile::open(&folder, &other).unwrap_err().to_string();
    assert!(e.contains("q_proj.weight has shape [32, 32], not [48, 32]") && e.contains("more"), "{e}");
}
