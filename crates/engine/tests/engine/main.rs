//! The engine's laws. Expected values come from PyTorch, from a forward in f64 in this folder, or from the engine
//! itself where the law is that two ways to the same result agree.

mod accumulation;
mod bf16;
mod claims;
mod common;
mod decoder;
mod dropout;
mod faults;
mod laws;
mod layouts;
mod mutants;
mod no_branch;
mod overlap;
mod packing;
mod precision;
mod predicted;
mod queued;
mod reference;
mod resume;
mod slopes;
