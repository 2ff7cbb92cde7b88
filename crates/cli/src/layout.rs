//! How a job is laid out over ranks, in words and as JSON.

use crate::figures::counted;
use crate::setup::Setup;
use memwall_engine::Zero;
use serde_json::{Value, json};

/// The layout's line; nothing for a rank that is alone.
pub(crate) fn text(setup: &Setup) -> String {
    let (p, threads) = (setup.job.parallel, setup.description.threads);
    if p.ranks == 1 {
        return String::new();
    }
    let cut = match setup.settings.zero {
        Zero::None => format!("every one holds all, dp_replicate {}", p.dp_replicate),
        stage if p.dp_replicate == 1 => format!("ZeRO-{} over dp_shard {}", stage as usize, p.dp_shard),
        stage => {
            format!("ZeRO-{} over dp_shard {}, dp_replicate {}", stage as usize, p.dp_shard, p.dp_replicate)
        }
    };
    format!("layout     {} ranks: {cut}; {} each\n", p.ranks, counted(threads, "thread"))
}

/// The layout as JSON.
pub(crate) fn json(setup: &Setup) -> Value {
    let p = setup.job.parallel;
    json!({
        "world": setup.mesh.world(), "data_ranks": setup.mesh.data_ranks(), "device": "cpu", "ranks": p.ranks,
        "zero": p.zero, "dp_replicate": p.dp_replicate, "dp_shard": p.dp_shard,
        "threads_each": setup.description.threads,
    })
}
