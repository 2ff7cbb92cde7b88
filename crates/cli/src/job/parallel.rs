//! `[parallel]`: how many ranks there are, and what each of them holds.

use toml::Value;

use super::JobError;
use super::schema::RANKS_LIMIT;
use super::values::Values;
use super::written::WrittenJob;

/// `[parallel]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParallelJob {
    /// Ranks, at least 1: `dp_replicate` x `dp_shard`.
    pub ranks: usize,
    /// Stage of ZeRO, 0 to 3; 0 with a `dp_shard` of 1, unless there is one rank.
    pub zero: usize,
    /// Replicas of what a sharding group holds, at least 1.
    pub dp_replicate: usize,
    /// Ranks of a sharding group, at least 1.
    pub dp_shard: usize,
    /// Seconds that a rank waits for another, at least 1.
    pub timeout: u64,
    /// Steps between comparisons of what ranks have in common, at least 1; `None` compares only at the start.
    pub check_every: Option<u64>,
}

/// The value of a key that was not given; `None` where what was given goes together with no value, which
/// [`contradiction`] then says.
pub(super) fn derived(name: &str, written: &WrittenJob) -> Option<Value> {
    let integer = |name: &str| written.get("parallel", name).and_then(Value::as_integer);
    let given = |name: &str| integer(name).filter(|n| (1..=RANKS_LIMIT).contains(n));
    let (ranks, replicate, shard) = (given("ranks"), given("dp_replicate"), given("dp_shard"));
    let sharded = integer("zero").is_some_and(|stage| stage > 0);
    let quotient = |ranks: i64, by: i64| (ranks % by == 0).then_some(ranks / by);
    let value = match (name, ranks) {
        ("ranks", _) => {
            Some(replicate.unwrap_or(1) * shard.unwrap_or(1)).filter(|ranks| *ranks <= RANKS_LIMIT)
        }
        ("dp_replicate", Some(ranks)) => match shard {
            Some(shard) => quotient(ranks, shard),
            None => Some(if sharded { 1 } else { ranks }),
        },
        ("dp_shard", Some(ranks)) if sharded => quotient(ranks, replicate.unwrap_or(1)),
        ("dp_replicate" | "dp_shard", _) => Some(1),
        _ => None,
    };
    value.map(Value::Integer)
}

/// What does not go together, if something does not.
pub(super) fn contradiction(values: &Values) -> Option<String> {
    let number = |name: &str| values.read::<i64>(&format!("parallel.{name}"));
    let indivisible = |ranks: i64, name: &str, by: i64| {
        let below = ranks / by * by;
        let nearest = [below, below + by].into_iter().filter(|n| (1..=RANKS_LIMIT).contains(n));
        let nearest: Vec<String> = nearest.map(|n| n.to_string()).collect();
        format!(
            "parallel.ranks = {ranks} is not a multiple of parallel.{name} = {by}: write ranks = {}, or another {name}",
            nearest.join(" or ")
        )
    };
    match (number("zero")?, number("ranks"), number("dp_replicate"), number("dp_shard")) {
        (_, None, Some(replicate), Some(shard)) if replicate * shard > RANKS_LIMIT => Some(format!(
            "parallel.dp_replicate = {replicate} x parallel.dp_shard = {shard} are {} ranks, more than {RANKS_LIMIT}: \
             write less for one of them",
            replicate * shard
        )),
        (_, Some(ranks), None, Some(shard)) if ranks % shard != 0 => {
            Some(indivisible(ranks, "dp_shard", shard))
        }
        (_, Some(ranks), Some(replicate), None) if ranks % replicate != 0 => {
            Some(indivisible(ranks, "dp_replicate", replicate))
        }
        (0, _, _, Some(shard)) if shard > 1 => Some(format!(
            "parallel.dp_shard = {shard} contradicts parallel.zero = 0, with which every rank holds all: write zero = 1, \
             2 or 3, or leave dp_shard out"
        )),
        (_, Some(ranks), Some(replicate), Some(shard)) if replicate * shard != ranks => Some(format!(
            "parallel.ranks = {ranks} is not parallel.dp_replicate = {replicate} x parallel.dp_shard = {shard}: write \
             ranks = {}, or leave out what follows from the others",
            replicate * shard
        )),
        (stage, Some(ranks), Some(replicate), Some(1)) if stage > 0 && ranks > 1 => Some(format!(
            "parallel.zero = {stage} shards over parallel.dp_shard = 1 ranks, which is nothing: write zero = 0, or less \
             than dp_replicate = {replicate}"
        )),
        _ => None,
    }
}

/// The number of ranks.
///
/// # Errors
/// What does not go together.
pub(super) fn ranks(values: &Values) -> Result<usize, JobError> {
    match contradiction(values) {
        Some(problem) => Err(JobError::one(problem)),
        None => values.need("parallel.ranks"),
    }
}

/// The section, typed.
pub(super) fn validated(values: &Values) -> Result<ParallelJob, JobError> {
    Ok(ParallelJob {
        ranks: ranks(values)?,
        zero: values.need("parallel.zero")?,
        dp_replicate: values.need("parallel.dp_replicate")?,
        dp_shard: values.need("parallel.dp_shard")?,
        timeout: values.need("parallel.timeout")?,
        check_every: Some(values.need("parallel.check_every")?).filter(|every| *every > 0),
    })
}

#[cfg(test)]
mod tests {
    use crate::job::tests::{FINE_TUNE, NONE, resolve};

    fn sets(text: &str) -> Vec<String> {
        text.split_whitespace().map(|set| format!("parallel.{set}")).collect()
    }

    /// Ranks, replicas and ranks of a sharding group of a job with these keys.
    fn layout(text: &str) -> Result<(usize, usize, usize), String> {
        let job =
            resolve(FINE_TUNE, &sets(text)).and_then(|job| job.validate()).map_err(|e| e.to_string())?;
        Ok((job.parallel.ranks, job.parallel.dp_replicate, job.parallel.dp_shard))
    }

    #[test]
    fn what_is_not_given_follows_from_what_is() {
        for (given, want) in [
            ("", (1, 1, 1)),
            ("zero=3", (1, 1, 1)),
            ("ranks=4", (4, 4, 1)),
            ("ranks=4 zero=1", (4, 1, 4)),
            ("ranks=4 zero=3 dp_replicate=2", (4, 2, 2)),
            ("ranks=6 zero=2 dp_shard=3", (6, 2, 3)),
            ("dp_replicate=3", (3, 3, 1)),
            ("zero=1 dp_shard=5", (5, 1, 5)),
            ("zero=2 dp_replicate=2 dp_shard=3", (6, 2, 3)),
            ("ranks=64", (64, 64, 1)),
        ] {
            assert_eq!(layout(given), Ok(want), "{given}");
            let job = resolve(FINE_TUNE, &sets(given)).unwrap();
            assert_eq!(resolve(&job.to_toml(), NONE).unwrap(), job, "{given}");
        }
    }

    #[test]
    fn contradictions_are_refused_with_what_to_write() {
        for (given, message) in [
            (
                "ranks=4 dp_replicate=2",
                "parallel.ranks = 4 is not parallel.dp_replicate = 2 x parallel.dp_shard = 1: write ranks = 2, or leave \
                 out what follows from the others",
            ),
            (
                "ranks=4 zero=1 dp_replicate=2 dp_shard=4",
                "parallel.ranks = 4 is not parallel.dp_replicate = 2 x parallel.dp_shard = 4: write ranks = 8, or leave \
                 out what follows from the others",
            ),
            (
                "ranks=4 dp_shard=2",
                "parallel.dp_shard = 2 contradicts parallel.zero = 0, with which every rank holds all: write zero = 1, 2 \
                 or 3, or leave dp_shard out",
            ),
            (
                "ranks=5 zero=1 dp_shard=2",
                "parallel.ranks = 5 is not a multiple of parallel.dp_shard = 2: write ranks = 4 or 6, or another dp_shard",
            ),
            (
                "ranks=2 zero=3 dp_replicate=4",
                "parallel.ranks = 2 is not a multiple of parallel.dp_replicate = 4: write ranks = 4, or another \
                 dp_replicate",
            ),
            (
                "ranks=2 zero=3 dp_replicate=2",
                "parallel.zero = 3 shards over parallel.dp_shard = 1 ranks, which is nothing: write zero = 0, or less than \
                 dp_replicate = 2",
            ),
            (
                "zero=1 dp_replicate=9 dp_shard=8",
                "parallel.dp_replicate = 9 x parallel.dp_shard = 8 are 72 ranks, more than 64: write less for one of them",
            ),
            ("ranks=65", "parallel.ranks = 65 is out of range: write a whole number from 1 to 64"),
            ("zero=4", "parallel.zero = 4 is out of range: write a whole number from 0 to 3"),
            ("timeout=0", "parallel.timeout = 0 is out of range: write a whole number from 1 to 2147483648"),
        ] {
            assert_eq!(layout(given), Err(message.to_owned()), "{given}");
        }
    }
}
