//! Address ranges under the arena, taken from the operating system once: private pages, and pages that ranks share.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// A mapping of memory: anonymous, or of a memory file that other processes can map too. The operating system gives pages as
/// they are first touched, and takes them back when the last mapping and descriptor are gone, however their processes end.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    file: Option<OwnedFd>,
}

// SAFETY: the region is plain memory; who may access which part is the arena's business.
unsafe impl Send for Region {}
// SAFETY: as above; `at` only computes an address.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `len` bytes of address space for this process alone, or `None` when the operating system refuses.
    pub(super) fn reserve(len: usize) -> Option<Self> {
        let region = Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None).ok()?;
        // Large pages save the walks of page tables that strided reads of matrices are made of. A wish, not a need.
        // SAFETY: advice about the mapping that was just made.
        #[cfg(target_os = "linux")]
        unsafe {
            libc::madvise(region.base.as_ptr().cast(), region.len, libc::MADV_HUGEPAGE);
        }
        Some(region)
    }

    /// A new memory file of `len` bytes, zeros, mapped here. It has no name in any file system; `name` is what tools show.
    ///
    /// # Errors
    /// The operating system's; none but Linux has memory files.
    #[cfg(target_os = "linux")]
    pub fn shared(name: &str, len: u64) -> io::Result<Self> {
        let name = std::ffi::CString::new(name).map_err(io::Error::other)?;
        // SAFETY: the name is a string that ends with zero; the call makes a descriptor that nobody else has.
        let file = unsafe {
            let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let size = libc::off_t::try_from(len).map_err(io::Error::other)?;
        // SAFETY: a descriptor that this function owns.
        if unsafe { libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&file), size) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Self::open(file, len)
    }

    /// As on Linux.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(target_os = "linux"))]
    pub fn shared(_: &str, _: u64) -> io::Result<Self> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "ranks share memory through memory files, which Linux has",
        ))
    }

    /// Maps the first `len` bytes of a memory file that [`Region::shared`] made, here or in another process.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(file: OwnedFd, len: u64) -> io::Result<Self> {
        Self::map(usize::try_from(len).map_err(io::Error::other)?, libc::MAP_SHARED, Some(file))
    }

    fn map(len: usize, flags: libc::c_int, file: Option<OwnedFd>) -> io::Result<Self> {
        let len = len.max(1);
        let fd = file.as_ref().map_or(-1, std::os::fd::AsRawFd::as_raw_fd);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a mapping at an address that the kernel chooses touches nothing that exists.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags | libc::MAP_NORESERVE, fd, 0) };
        match NonNull::new(base.cast::<u8>()) {
            Some(start) if base != libc::MAP_FAILED => Ok(Self { base: start, len, file }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The memory file, where it is one.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Bytes of the memory file that have pages, whoever touched them; `None` for private memory.
    pub fn resident(&self) -> Option<u64> {
        let fd = std::os::fd::AsRawFd::as_raw_fd(self.file.as_ref()?);
        // SAFETY: zeros are a value of the structure, which the call fills.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            (libc::fstat(fd, &raw mut stat) == 0).then_some(stat.st_blocks as u64 * 512)
        }
    }

    /// Address of the byte at `offset`.
    pub fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.len);
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none; there always are.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are the mapping made in `map`; every buffer holds the region, so none is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
