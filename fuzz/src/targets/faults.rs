//! Breaks the law in every way, to test that it is found.

use super::{Definition, Outcome, Target};
use crate::mutate::Form;
use std::path::Path;

pub(super) const DEFINITION: Definition = Definition {
    name: "faults",
    form: Form::Text,
    words: &["fine"],
    inputs: Vec::new,
    target: |_: &Path| Box::new(Faults),
    for_tests: true,
};

struct Faults;

impl Target for Faults {
    fn run(&mut self, input: &[u8]) -> Outcome {
        match input {
            b"panic" => panic!("as it was told"),
            b"abort" => std::process::abort(),
            b"stack" => Outcome::Refused(deep(u64::MAX).to_string()),
            b"asleep" => loop {
                std::thread::sleep(std::time::Duration::from_millis(10));
            },
            b"endless" => loop {
                std::hint::spin_loop();
            },
            b"memory" => {
                std::hint::black_box(vec![1u8; 1 << 36]);
                Outcome::Accepted
            }
            b"greedy" => {
                std::hint::black_box(vec![1u8; 1 << 20]);
                Outcome::Accepted
            }
            b"silent" => Outcome::Refused(" ".into()),
            b"refused" => Outcome::Refused("as it was told".into()),
            _ => Outcome::Accepted,
        }
    }

    fn allowance(&self, len: usize) -> usize {
        (1 << 16) + len
    }
}

/// Needs more stack than there is.
fn deep(n: u64) -> u64 {
    let room = std::hint::black_box([n; 64]);
    if n == 0 { 0 } else { deep(n - 1) + std::hint::black_box(room)[1] }
}
