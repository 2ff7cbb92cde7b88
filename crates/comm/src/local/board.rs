//! The board: words of shared memory on which ranks say what they do.
//!
//! For each group axis and each rank there is a ring of entries, one for each collective that may be under way; for each pair
//! of ranks in it a ring of what one sends the other. An entry is written by its owner alone. A word that says "published" or
//! "finished" holds the number of the collective plus one, so that an entry's former use cannot be taken for its present one.

use memwall_tensor::Region;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Collectives of one group that a rank may have under way.
pub(super) const RING: usize = 16;

/// Kinds of groups, see [`crate::Groups::AXES`].
pub(super) const KINDS: usize = 3;

/// Bytes of a text on the board.
const TEXT: usize = 960;

/// Number of the supervisor among those who fail, beyond any rank's.
pub(super) const SUPERVISOR: usize = u16::MAX as usize;

/// What all ranks look at.
#[repr(C, align(128))]
pub(super) struct Head {
    /// 0, or one more than the number of who failed first.
    failed: AtomicU32,
    /// Bytes of the reason, once it is written.
    length: AtomicU32,
    reason: [AtomicU64; TEXT / 8],
}

/// What a rank says of itself.
#[repr(C, align(128))]
pub(super) struct Post {
    /// Changes whenever the rank has said something.
    bell: AtomicU32,
    /// Ranks that sleep until it does.
    sleepers: AtomicU32,
    /// Whether it has ended as it should.
    pub(super) left: AtomicU32,
    /// Where its program was when it last started or awaited a collective: phase and unit, as [`super::watch`] packs them.
    pub(super) moment: AtomicU64,
    /// Whom it waits for and in what, as [`super::watch`] packs it; 0 where it does not wait.
    pub(super) waits: AtomicU64,
}

/// A collective of a rank.
#[repr(C, align(128))]
pub(super) struct Entry {
    /// The number of the collective plus one, once the rest is written.
    pub(super) published: AtomicU64,
    /// What it is, see [`super::group::Said`].
    pub(super) what: [AtomicU64; 5],
    /// The same number, once this rank is done with the others' memory.
    pub(super) finished: AtomicU64,
}

/// The board of a world of ranks.
#[derive(Debug)]
pub(super) struct Board {
    region: Region,
    world: usize,
}

impl Board {
    /// Bytes of the board of a world.
    pub(super) fn bytes(world: usize) -> u64 {
        let entries = KINDS * (world + world * world) * RING;
        (size_of::<Head>() + world * size_of::<Post>() + entries * size_of::<Entry>()) as u64
    }

    /// A new board.
    pub(super) fn new(world: usize) -> io::Result<Self> {
        Ok(Self { region: Region::shared("memwall-board", Self::bytes(world))?, world })
    }

    /// The board in a memory file that another process made.
    pub(super) fn open(file: std::os::fd::OwnedFd, world: usize) -> io::Result<Self> {
        Ok(Self { region: Region::open(file, Self::bytes(world))?, world })
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    fn at<T>(&self, offset: usize) -> &T {
        assert!(offset + size_of::<T>() <= self.region.len(), "a word beyond the board");
        // SAFETY: in bounds, aligned (the mapping is to pages, sizes are multiples of 128), zero at first, and only ever
        // accessed as atomics.
        unsafe { &*self.region.at(offset).cast() }
    }

    fn head(&self) -> &Head {
        self.at(0)
    }

    pub(super) fn post(&self, rank: usize) -> &Post {
        self.at(size_of::<Head>() + rank * size_of::<Post>())
    }

    fn entries(&self) -> usize {
        size_of::<Head>() + self.world * size_of::<Post>()
    }

    /// The entry of collective number `number` of a rank in its group of this kind.
    pub(super) fn entry(&self, kind: usize, rank: usize, number: u64) -> &Entry {
        let at = (kind * self.world + rank) * RING + number as usize % RING;
        self.at(self.entries() + at * size_of::<Entry>())
    }

    /// The entry of message number `number` from one rank to another, in a group of this kind.
    pub(super) fn message(&self, kind: usize, from: usize, to: usize, number: u64) -> &Entry {
        let pair = (KINDS + kind * self.world + from) * self.world + to;
        let at = pair * RING + number as usize % RING;
        self.at(self.entries() + at * size_of::<Entry>())
    }

    /// Tells all who sleep on this rank that it has said something.
    pub(super) fn ring(&self, rank: usize) {
        let post = self.post(rank);
        post.bell.fetch_add(1, Ordering::SeqCst);
        if post.sleepers.load(Ordering::SeqCst) > 0 {
            super::futex::wake(&post.bell);
        }
    }

    /// Sleeps until `rank` has said something after `ready` was false, at most for `limit`.
    pub(super) fn sleep(&self, rank: usize, limit: std::time::Duration, ready: impl Fn() -> bool) {
        let post = self.post(rank);
        post.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = post.bell.load(Ordering::SeqCst);
        if !ready() {
            super::futex::wait(&post.bell, seen, limit);
        }
        post.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Stops all ranks: `who` has failed. Only the first failure is kept.
    pub(super) fn fail(&self, who: usize, reason: &str) {
        let head = self.head();
        let first =
            head.failed.compare_exchange(0, who as u32 + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if first {
            let mut length = reason.len().min(TEXT);
            while !reason.is_char_boundary(length) {
                length -= 1;
            }
            for (word, bytes) in head.reason.iter().zip(reason.as_bytes()[..length].chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
            }
            head.length.store(length as u32, Ordering::Release);
        }
        (0..self.world).for_each(|rank| self.ring(rank));
    }

    /// Who failed first, and why.
    pub(super) fn failure(&self) -> Option<(usize, String)> {
        let head = self.head();
        let who = head.failed.load(Ordering::SeqCst).checked_sub(1)? as usize;
        let length = (head.length.load(Ordering::Acquire) as usize).min(TEXT);
        let bytes: Vec<u8> =
            head.reason.iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).take(length).collect();
        Some((who, String::from_utf8_lossy(&bytes).into_owned()))
    }
}
