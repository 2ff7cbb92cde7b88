//! A save takes no large block from the operating system: tensors go from the device to the file a piece at a time.

use memwall_checkpoint::{Disk, RunState, Store};
use memwall_comm::Solo;
use memwall_engine::{AdamWSettings, Decay, Keep, Rank, Schedule, Settings};
use memwall_model::{ModelConfig, ModelSpec};
use memwall_tensor::{Cpu, Description};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Blocks above this count as large.
const LARGE: usize = 64 << 10;

static LARGE_BLOCKS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is handed to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGE_BLOCKS.fetch_add(u64::from(layout.size() > LARGE), Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn saving_and_saving_again_takes_no_large_block() {
    let config = r#"{"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "vocab_size": 1024}"#;
    let spec = ModelSpec::new(ModelConfig::from_json(config).unwrap());
    let settings = Settings {
        micro_batch: 1,
        micro_batches: 1,
        sequence: 8,
        deterministic: false,
        clip: None,
        seed: 1,
        keep: Keep::ALL,
        optimizer: AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 },
        schedule: Schedule { peak: 1e-2, last: 1e-2, warmup: 0, steps: 9, decay: Decay::Constant },
    };
    let device = Cpu::new(Description { threads: 1 }, 64 << 20).unwrap();
    let mut rank = Rank::new(device, Box::new(Solo), spec, settings).unwrap();
    rank.initialize();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path(), 2, Disk::default());
    let mut state = RunState { step: 1, samples: 0, tokens: 0, data: "d".into(), job: "j".into() };
    let before = LARGE_BLOCKS.load(Relaxed);
    for step in 1..4 {
        state.step = step;
        store.save(&rank, &state).unwrap();
    }
    assert_eq!(LARGE_BLOCKS.load(Relaxed), before);
    // The counter can count.
    drop(std::hint::black_box(vec![1u8; LARGE + 1]));
    assert_eq!(LARGE_BLOCKS.load(Relaxed), before + 1);
}
