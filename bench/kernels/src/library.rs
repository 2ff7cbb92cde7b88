//! A library of the BLAS kind, loaded at run time; and the cores that a process may use. The only file here with `unsafe`.

use crate::Fault;
use memwall_tensor::device::{MatmulDims, MatmulLayout};
use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `cblas_sgemm` with integers of a width: order, transposition of a and b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc.
type Sgemm<I> =
    unsafe extern "C" fn(c_int, c_int, c_int, I, I, I, f32, *const f32, I, *const f32, I, f32, *mut f32, I);

/// Names of the function in libraries with 32-bit and with 64-bit integers.
const NARROW: [&CStr; 2] = [c"cblas_sgemm", c"scipy_cblas_sgemm"];
const WIDE: [&CStr; 2] = [c"cblas_sgemm64_", c"scipy_cblas_sgemm64_"];

enum Function {
    Narrow(Sgemm<i32>),
    Wide(Sgemm<i64>),
}

/// A loaded library.
pub(crate) struct Library(Function);

impl Library {
    /// Loads a library that has `cblas_sgemm`, under one of the names that it goes by.
    pub(crate) fn open(path: &Path) -> Result<Self, Fault> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the name ends with a zero. What the library runs as it is loaded is the user's choice.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            // SAFETY: after a failure dlerror returns a string that ends with a zero.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(format!("cannot load {}: {}", path.display(), why.to_string_lossy()).into());
        }
        // SAFETY: the library is loaded, and is never unloaded.
        let find = |names: [&CStr; 2]| names.map(|name| unsafe { libc::dlsym(handle, name.as_ptr()) });
        let found = |pointers: [*mut c_void; 2]| pointers.into_iter().find(|p| !p.is_null());
        if let Some(pointer) = found(find(NARROW)) {
            // SAFETY: functions of these names have this signature.
            return Ok(Self(Function::Narrow(unsafe {
                std::mem::transmute::<*mut c_void, Sgemm<i32>>(pointer)
            })));
        }
        if let Some(pointer) = found(find(WIDE)) {
            // SAFETY: as above.
            return Ok(Self(Function::Wide(unsafe {
                std::mem::transmute::<*mut c_void, Sgemm<i64>>(pointer)
            })));
        }
        Err(format!("{} has no cblas_sgemm", path.display()).into())
    }

    /// `c = a b` in a layout of row-major matrices.
    pub(crate) fn matmul(&self, layout: MatmulLayout, d: MatmulDims, a: &[f32], b: &[f32], c: &mut [f32]) {
        const ROW_MAJOR: c_int = 101;
        const AS_IS: c_int = 111;
        const TRANSPOSED: c_int = 112;
        let MatmulDims { m, n, k } = d;
        assert!(a.len() == m * k && b.len() == n * k && c.len() == m * n, "operands do not have {d:?}");
        let (ta, lda, tb, ldb) = match layout {
            MatmulLayout::Nt => (AS_IS, k, TRANSPOSED, k),
            MatmulLayout::Nn => (AS_IS, k, AS_IS, n),
            MatmulLayout::Tn => (TRANSPOSED, m, AS_IS, n),
        };
        let (pa, pb, pc) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
        macro_rules! call {
            ($f:expr, $int:ty) => {
                // SAFETY: the operands have the elements that these sizes and leading dimensions reach, as asserted.
                unsafe {
                    let i = |x: usize| <$int>::try_from(x).expect("sizes fit the library's integers");
                    $f(ROW_MAJOR, ta, tb, i(m), i(n), i(k), 1.0, pa, i(lda), pb, i(ldb), 0.0, pc, i(n))
                }
            };
        }
        match self.0 {
            Function::Narrow(f) => call!(f, i32),
            Function::Wide(f) => call!(f, i64),
        }
    }
}

/// Keeps this process, and those that it starts, on so many of its cores.
pub(crate) fn pin(threads: usize) -> Result<(), Fault> {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: all zeros is an empty set, and the calls get its true size.
    unsafe {
        let (mut allowed, mut chosen): (libc::cpu_set_t, libc::cpu_set_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        if libc::sched_getaffinity(0, size, &raw mut allowed) != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        let cores = (0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &allowed));
        cores.take(threads).for_each(|core| libc::CPU_SET(core, &mut chosen));
        if libc::sched_setaffinity(0, size, &raw const chosen) != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
    }
    Ok(())
}
