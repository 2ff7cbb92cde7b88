//! What a job in bf16 may and does not do.

mod common;

use common::{JOB, Place, tensors};

// DeepSpeed #5307: bf16 weights without masters did not move in 100 steps. Here bf16 always has f32 masters, no key
// takes them away, and steps far below what bf16 can show add up in them.
#[test]
fn ds_5307_small_steps_in_bf16_move_the_masters() {
    let p = Place::new();
    let text = JOB
        .replace("learning_rate = 3e-3", "learning_rate = 2e-8\nschedule = \"constant\"\nweight_decay = 0.0");
    p.write("job.toml", &text);
    let run = |steps: &str| {
        let (dir, steps) = (format!("run.dir=run{steps}"), format!("train.steps={steps}"));
        p.ok(&[
            "train",
            "job.toml",
            "--set",
            "precision.mode=bf16",
            "--set",
            "export.dtype=float32",
            "--set",
            &dir,
            "--set",
            &steps,
        ]);
    };
    run("2");
    run("102");
    let read = |steps: &str| -> Vec<u32> {
        let mut all = tensors(&p.path(&format!("run{steps}/export/model.safetensors")));
        let q = all.remove("model.layers.0.self_attn.q_proj.weight").unwrap();
        q.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let (early, late) = (read("2"), read("102"));
    assert_eq!((early.len(), late.len()), (24 * 24, 24 * 24), "the export is of f32");
    let share = |differ: &dyn Fn(&u32, &u32) -> bool| {
        early.iter().zip(&late).filter(|(a, b)| differ(a, b)).count() as f64 / early.len() as f64
    };
    assert!(share(&|a, b| a != b) > 0.9, "masters did not move");
    // The upper halves, which is what bf16 has, are nearly all as they were: without masters nothing would have moved.
    assert!(share(&|a, b| a >> 16 != b >> 16) < 0.2, "steps were not small");
    let text = p.refused(&["train", "job.toml", "--set", "precision.masters=false", "--set", "run.dir=no"]);
    assert!(text.contains("precision.masters") && text.contains("no such key"), "{text}");
}
