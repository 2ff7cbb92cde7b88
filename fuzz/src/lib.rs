//! Feeds damaged and hostile files to everything that reads files.
//!
//! The law for each target: it never panics, never takes longer than the time limit, never allocates more than the
//! memory limit, and either accepts its input or refuses it with a text; some targets have laws of their own.
//!
//! A supervising process starts workers as children, so that aborts, exhausted stacks and endless loops are found as
//! well. Inputs are mutations of the corpus, a function of seed, target and number alone; those that break the law join
//! the corpus, which every run replays first.

pub mod allocator;
mod case;
mod mutate;
mod random;
mod supervise;
mod targets;
mod text;
mod worker;

pub use case::{Case, Cases};
pub use mutate::Form;
pub use supervise::{Finding, Report, Supervisor};
pub use targets::{Definition, Outcome, TARGETS, Target};
pub use worker::{Inputs, Progress, Work, work};
