//! The address range under the arena: anonymous pages, taken from the operating system once.

use std::ptr::NonNull;

/// An anonymous mapping.
#[derive(Debug)]
pub(super) struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the region is plain memory; who may access which part is the arena's business.
unsafe impl Send for Region {}
// SAFETY: as above; `at` only computes an address.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `len` bytes of address space, or `None` when the operating system refuses.
    pub(super) fn reserve(len: usize) -> Option<Self> {
        let len = len.max(1);
        // SAFETY: an anonymous mapping at an address that the kernel chooses touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        // Large pages save the walks of page tables that strided reads of matrices are made of. A wish, not a need.
        // SAFETY: advice about the mapping that was just made.
        #[cfg(target_os = "linux")]
        unsafe {
            libc::madvise(base, len, libc::MADV_HUGEPAGE);
        }
        NonNull::new(base.cast()).map(|base| Self { base, len })
    }

    /// Address of the byte at `offset`.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.len);
        self.base.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are the mapping made in `reserve`; every buffer holds the region, so none
        // is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
