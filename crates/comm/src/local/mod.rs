//! Ranks of one machine: threads or processes that read each other's memory in place.
//!
//! Each rank has an arena, a memory file that all others map. `start` publishes on the [`board`](self) where a collective's
//! buffers lie; `wait` reads the others' with the rank's own threads, and for a sum that all are to have writes into them, says
//! when it is done, and returns once the others are too. Nobody copies for anybody else, and no thread waits in the background.
//!
//! Every rank compares what the others have published with what it does itself: a mismatch is an error that names both ranks.
//! The first rank that fails stops all others, which say why.

mod board;
mod fabric;
mod futex;
mod group;
mod said;
mod threads;
mod watch;

pub use fabric::Fabric;
