//! Operands of zeros for operations that should refuse them, and the check that they do.

use super::{upload, vector};
use memwall_layout::{Axis, Cut, Placement, Placements, Reduction};
use memwall_tensor::device::Device;
use memwall_tensor::{Error, Shape, Tensor, View, ViewMut};

/// What an operation said.
pub type Said = Result<(), Error>;

/// What operations said, by what was wrong.
pub type Misfits = Vec<(&'static str, Said)>;

pub const HALF_ROWS: Placement = Placement::Shard(0, Cut::Even);
pub const HALF_COLUMNS: Placement = Placement::Shard(1, Cut::Even);
pub const OWED: Placement = Placement::Partial(Reduction::Sum);

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

/// A tensor as if it were placed so among tensor-parallel ranks.
pub fn at<D: Device>(t: &Tensor<D>, placement: Placement) -> View<'_, D> {
    View { placements: Placements::REPLICATED.with(Axis::Tp, placement), ..t.view() }
}

/// [`at`], to write.
pub fn into<D: Device>(t: &mut Tensor<D>, placement: Placement) -> ViewMut<'_, D> {
    ViewMut { placements: Placements::REPLICATED.with(Axis::Tp, placement), ..t.view_mut() }
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
