//! The hash by which damage is found: XXH3 of 128 bits. It is as fast as memory, and damage that leaves it as it was is one in 2^128;
//! it is no protection from someone who forges files, who could forge a manifest as well.

use twox_hash::XxHash3_128;

/// A hash of bytes that come piece by piece.
#[derive(Clone, Default)]
pub(crate) struct Hash(XxHash3_128);

impl Hash {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Hexadecimal.
    pub(crate) fn finish(&self) -> String {
        format!("{:032x}", self.0.finish_128())
    }

    /// Of bytes that are all there.
    pub(crate) fn of(bytes: &[u8]) -> String {
        format!("{:032x}", XxHash3_128::oneshot(bytes))
    }
}
