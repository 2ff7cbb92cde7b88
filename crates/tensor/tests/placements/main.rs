//! The proof of the rules of placements: for every operation, every mix of placements of its operands on an axis is
//! either refused, by an error that names operation, operands and axis, or legal; and a legal mix, on one axis and with
//! every other on a second, yields on the parts of real tensors the parts of what the operation yields on the whole.
//!
//! Results are equal, not near: where sums are split among ranks, operands are small whole numbers, whose sums in f32 are
//! exact in any order. How many mixes are legal is written down with each operation, so that no rule can vanish.

#[path = "../common/mod.rs"]
mod common;

mod attention;
mod cut;
mod norms;
mod pointwise;
mod products;
mod proof;
mod sums;
