//! Operands of zeros for operations that should refuse them, and the check that they do.

use super::{upload, vector};
use memwall_tensor::device::Device;
use memwall_tensor::{Error, Shape, Tensor};

/// What an operation said.
pub type Said = Result<(), Error>;

/// What operations said, by what was wrong.
pub type Misfits = Vec<(&'static str, Said)>;

/// A matrix of zeros.
pub fn m<D: Device>(device: &D, rows: usize, cols: usize) -> Tensor<D> {
    upload(device, Shape::matrix(rows, cols), &vec![0f32; rows * cols])
}

/// A vector of zeros.
pub fn v<D: Device>(device: &D, n: usize) -> Tensor<D> {
    vector(device, &vec![0f32; n])
}

/// A vector of ids, all zero.
pub fn ids<D: Device>(device: &D, n: usize) -> Tensor<D> {
    vector(device, &vec![0i32; n])
}

/// Every one of `said` is refused, by what `kind` recognizes.
pub fn all_refused(kind: fn(&Error) -> bool, said: &[(&str, Said)]) {
    for (what, said) in said {
        assert!(said.as_ref().is_err_and(kind), "{what}: {said:?}");
    }
}

/// A test that runs a list of misfits on both devices.
#[macro_export]
macro_rules! refused {
    ($name:ident, $list:ident, $kind:ident) => {
        #[test]
        fn $name() {
            let kind = |e: &memwall_tensor::Error| matches!(e, memwall_tensor::Error::$kind(_));
            all_refused(kind, &$list(&cpu(2)));
            all_refused(kind, &$list(&dry(2)));
        }
    };
}
