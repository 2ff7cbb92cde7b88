//! Random numbers that depend on a seed alone: SplitMix64.

/// A generator.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The generator of a stream: equal arguments give equal numbers.
    pub(crate) fn new(seed: u64, name: &str, number: u64) -> Self {
        let mut random = Self(seed);
        for byte in name.bytes() {
            random.0 ^= u64::from(byte);
            random.next();
        }
        random.0 ^= number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        random.next();
        random
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next() % n as u64) as usize }
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of a slice that is not empty.
    pub(crate) fn choose<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// A part of `0..len`, mostly short.
    pub(crate) fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len);
        let most = (len - start).min(if self.one_in(4) { len } else { 16 });
        start..start + self.below(most + 1)
    }
}
