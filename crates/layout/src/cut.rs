//! How a tensor dim is cut among the ranks of an axis: which elements each rank holds.

use std::fmt;
use std::ops::Range;

/// How a dim is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cut {
    /// In equal parts, in the order of the ranks.
    Even,
    /// In equal parts of a dim that was made longer by zeros: it has this true length. Every operation that accepts it
    /// keeps the zeros.
    Padded(usize),
    /// In twice as many equal parts as ranks, of which rank `r` of `n` holds the `r`-th and, behind it, the
    /// `(2n - 1 - r)`-th: so that each has as much to do under a causal mask (Llama 3, section 3.3.2).
    Zigzag,
    /// Each rank holds this many elements of every run of as many for each rank: the heads of a rank, where a row is a
    /// head, and each token's heads are sharded.
    Strided(usize),
}

impl Cut {
    /// Elements that each of `ranks` ranks holds of a dim of `len`, zeros behind the last included. `None` when the dim
    /// cannot be cut so.
    pub fn local_len(self, len: usize, ranks: usize) -> Option<usize> {
        match self {
            Cut::Even => (len.checked_rem(ranks)? == 0).then(|| len / ranks),
            Cut::Padded(true_len) => (len == true_len && ranks > 0).then(|| len.div_ceil(ranks)),
            Cut::Zigzag => (len.checked_rem(2 * ranks)? == 0).then(|| len / ranks),
            Cut::Strided(run) => (len.checked_rem(run * ranks)? == 0).then(|| len / ranks),
        }
    }

    /// The elements of a dim of `len` that rank `rank` of `ranks` holds, in the order in which it holds them; what is
    /// missing to [`Cut::local_len`] is zeros behind them. `None` when the dim cannot be cut so.
    pub fn parts(self, len: usize, ranks: usize, rank: usize) -> Option<Vec<Range<usize>>> {
        let local = self.local_len(len, ranks)?;
        let part = |index: usize, size: usize| (index * size).min(len)..((index + 1) * size).min(len);
        Some(match self {
            Cut::Even | Cut::Padded(_) => vec![part(rank, local)],
            Cut::Zigzag => vec![part(rank, local / 2), part(2 * ranks - 1 - rank, local / 2)],
            Cut::Strided(run) => (0..local / run).map(|i| part(i * ranks + rank, run)).collect(),
        })
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Even => write!(f, "evenly"),
            Cut::Padded(len) => write!(f, "padded beyond {len}"),
            Cut::Zigzag => write!(f, "in zigzag"),
            Cut::Strided(run) => write!(f, "in runs of {run}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_held_once_and_every_rank_holds_as_many() {
        for ranks in 1..6 {
            for len in 0..40 {
                for cut in [Cut::Even, Cut::Padded(len), Cut::Zigzag, Cut::Strided(1), Cut::Strided(3)] {
                    let Some(local) = cut.local_len(len, ranks) else {
                        assert!(cut.parts(len, ranks, 0).is_none());
                        continue;
                    };
                    let mut held: Vec<usize> = Vec::new();
                    for rank in 0..ranks {
                        let parts = cut.parts(len, ranks, rank).unwrap();
                        let count: usize = parts.iter().map(ExactSizeIterator::len).sum();
                        assert!(count == local || (matches!(cut, Cut::Padded(_)) && count < local));
                        held.extend(parts.into_iter().flatten());
                    }
                    held.sort_unstable();
                    assert_eq!(held, (0..len).collect::<Vec<_>>(), "{cut} among {ranks}");
                }
            }
        }
    }

    #[test]
    fn a_zigzag_gives_every_rank_as_many_pairs_of_a_causal_mask() {
        let pairs = |rank| Cut::Zigzag.parts(48, 3, rank).unwrap().into_iter().flatten().map(|q| q + 1).sum();
        let [a, b, c]: [usize; 3] = [0, 1, 2].map(pairs);
        assert!(a == b && b == c);
    }

    #[test]
    fn a_dim_that_cannot_be_cut_is_not() {
        assert_eq!(Cut::Even.local_len(7, 2), None);
        assert_eq!(Cut::Zigzag.local_len(6, 2), None);
        assert_eq!(Cut::Padded(7).local_len(7, 2), Some(4));
        assert_eq!(Cut::Padded(6).local_len(7, 2), None);
        assert_eq!(Cut::Even.local_len(7, 0), None);
    }
}
