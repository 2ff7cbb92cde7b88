//! What the end of all ranks comes to: which failed first, what it said, and the exit code.

use crate::failure::Failure;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

/// Exit code of a process that has stopped because the user asked for it.
pub(super) const INTERRUPTED: i32 = 130;

/// How a rank has ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// Its number.
    pub(super) rank: usize,
    /// What the system says.
    pub(super) status: ExitStatus,
    /// Its last lines on standard error.
    pub(super) words: Vec<String>,
    /// Its log.
    pub(super) log: PathBuf,
}

/// Whether a rank has ended as it should.
pub(super) fn well(status: ExitStatus) -> bool {
    matches!(status.code(), Some(0 | INTERRUPTED))
}

/// How a rank's process has ended, in words.
pub(super) fn how(rank: usize, status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(libc::SIGKILL), _) => {
            format!("rank {rank} was killed by signal 9, which the system sends too when memory runs out")
        }
        (Some(signal), _) => format!("rank {rank} was killed by signal {signal}"),
        (None, Some(code)) => format!("rank {rank} failed with exit code {code}"),
        (None, None) => format!("rank {rank} has ended, nobody knows how"),
    }
}

/// The outcome of a run whose ranks have all ended. `first` is the one that was seen to have failed first; `said` is the one
/// that has said so itself, and why.
///
/// # Errors
/// One rank or more did not end well.
pub(super) fn verdict(
    ended: &[Ended],
    first: Option<usize>,
    said: Option<(usize, String)>,
) -> Result<(), Failure> {
    // Who says that it has failed did so before it ended, and before anybody could fail because of it.
    let culprit = said.as_ref().map(|(rank, _)| *rank).or(first);
    let Some(culprit) = culprit.and_then(|rank| ended.iter().find(|e| e.rank == rank)) else {
        let stopped = ended.iter().any(|e| e.status.code() == Some(INTERRUPTED));
        return if stopped { Err(Failure::Told(INTERRUPTED as u8)) } else { Ok(()) };
    };
    let words = culprit.words.join("\n");
    if culprit.status.code() == Some(2) {
        // Refused before anything started: every rank says the same.
        return Err(Failure::Refused(words.strip_prefix("memwall: ").unwrap_or(&words).to_owned()));
    }
    let mut text = format!("{}; all ranks were stopped\n", how(culprit.rank, culprit.status));
    if let Some((_, reason)) = said.filter(|(_, reason)| !words.contains(reason.as_str())) {
        text.push_str(&format!("it failed because: {reason}\n"));
    }
    if words.is_empty() {
        text.push_str("it left no last words\n");
    } else {
        text.push_str("its last words:\n");
        for line in &culprit.words {
            text.push_str(&format!("  | {line}\n"));
        }
    }
    text.push_str(&format!("its log is {}", culprit.log.display()));
    Err(Failure::Failed(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(rank: usize, raw: i32, words: &[&str]) -> Ended {
        let words = words.iter().map(|w| (*w).to_owned()).collect();
        let log = format!("run/logs/rank-{rank}.log").into();
        Ended { rank, status: ExitStatus::from_raw(raw), words, log }
    }

    /// As the system packs an exit code.
    const fn code(code: i32) -> i32 {
        code << 8
    }

    #[test]
    fn ranks_that_all_end_well_are_a_success_or_an_interruption() {
        let both = |a, b| verdict(&[ended(0, a, &[]), ended(1, b, &[])], None, None);
        assert!(both(0, 0).is_ok());
        let interrupted = both(code(INTERRUPTED), code(INTERRUPTED)).unwrap_err();
        assert_eq!(interrupted.code(), 130);
    }

    #[test]
    fn a_rank_that_was_killed_is_named_whatever_the_others_say() {
        let all =
            [ended(0, code(1), &["memwall: rank 1 was killed by signal 9"]), ended(1, 9, &["warning: hot"])];
        let failure = verdict(&all, Some(1), None).unwrap_err();
        let text = failure.to_string();
        assert_eq!(failure.code(), 1);
        assert!(
            text.starts_with("rank 1 was killed by signal 9") && text.contains("  | warning: hot\n"),
            "{text}"
        );
        assert!(text.ends_with("its log is run/logs/rank-1.log") && !text.contains("memwall: "), "{text}");
    }

    #[test]
    fn who_says_that_it_failed_comes_before_who_was_seen_to_have_failed() {
        let all =
            [ended(0, code(1), &["memwall: rank 1 has failed"]), ended(1, code(1), &["memwall: no disk"])];
        let said = |reason: &str| Some((1, reason.to_owned()));
        let text = verdict(&all, Some(0), said("no disk")).unwrap_err().to_string();
        assert!(text.starts_with("rank 1 failed with exit code 1"), "{text}");
        assert!(text.contains("  | memwall: no disk") && !text.contains("because"), "{text}");
        let text = verdict(&all, Some(0), said("it panicked")).unwrap_err().to_string();
        assert!(text.contains("it failed because: it panicked"), "{text}");
    }

    #[test]
    fn what_ranks_refuse_is_refused_in_their_words() {
        let all = [0, 1].map(|rank| ended(rank, code(2), &["memwall: the data has changed"]));
        let failure = verdict(&all, Some(1), None).unwrap_err();
        assert_eq!((failure.code(), failure.to_string()), (2, "the data has changed".to_owned()));
    }
}
