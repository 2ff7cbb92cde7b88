//! What is done to a product where it is stored equals what separate operations do, to the bit.

mod common;

use common::*;
use memwall_tensor::device::{Activation, Epilogue, Linear, MatmulDims, MatmulLayout};
use memwall_tensor::{Cpu, DType, Shape, Tensor, bf16, ops};
use proptest::prelude::*;

/// `x + y` rounded once to f32, then to `dtype`.
fn sum(dtype: DType, x: f32, y: f32) -> f32 {
    if dtype == DType::BF16 { bf16::from_f32(x + y).to_f32() } else { x + y }
}

/// `x w^T` in f32: the chains that the result begins as.
fn chains(device: &Cpu, x: &Tensor<Cpu>, w: &Tensor<Cpu>, start: Option<&Tensor<Cpu>>) -> Vec<f32> {
    let (rows, cols) = (x.shape().rows(), w.shape().rows());
    let mut y = matrix(device, rows, &start.map_or(vec![0.0; rows * cols], |s| values(device, s)));
    ops::linear_into(device, x.view(), w.view(), y.view_mut(), start.is_some()).unwrap();
    floats(device, &y)
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn a_bias_is_added_to_each_row_of_sums_before_they_are_rounded(
        m in 1usize..40, n in 1usize..300, k in 1usize..300, dtype in floating(), accumulate: bool,
        threads in 1usize..=3, seed: u64,
    ) {
        let (device, mut s) = (cpu(threads), Stream::new(seed));
        let [x, w, mut y] = [(m, k), (n, k), (m, n)]
            .map(|(r, c)| random(&device, dtype, Shape::matrix(r, c), 1.0, &mut s));
        let b = random(&device, dtype, Shape::vector(n), 1.0, &mut s);
        let bias = values(&device, &b);
        let want: Vec<f32> = chains(&device, &x, &w, accumulate.then_some(&y))
            .iter()
            .enumerate()
            .map(|(at, sums)| sum(dtype, *sums, bias[at % n]))
            .collect();
        ops::affine_into(&device, x.view(), w.view(), Some(b.view()), y.view_mut(), accumulate).unwrap();
        prop_assert_eq!(bits(&values(&device, &y)), bits(&want));
    }

    #[test]
    fn an_activation_beside_is_that_of_the_stored_result(
        m in 1usize..40, n in 1usize..300, k in 1usize..300, dtype in floating(), bias: bool,
        threads in 1usize..=3, seed: u64,
    ) {
        let (device, mut s) = (cpu(threads), Stream::new(seed));
        let [x, w, gate] = [(m, k), (n, k), (m, n)]
            .map(|(r, c)| random(&device, dtype, Shape::matrix(r, c), 1.0, &mut s));
        let b = random(&device, dtype, Shape::vector(n), 1.0, &mut s);
        let b = bias.then(|| b.view());
        let y = bytes(&device, &[&ops::affine(&device, x.view(), w.view(), b).unwrap()]);

        let (stored, beside) = ops::affine_gelu(&device, x.view(), w.view(), b).unwrap();
        prop_assert_eq!(&bytes(&device, &[&stored]), &y);
        let apart = ops::gelu(&device, stored.view()).unwrap();
        prop_assert_eq!(bytes(&device, &[&beside]), bytes(&device, &[&apart]));

        let (stored, beside) =
            ops::affine_swiglu(&device, x.view(), w.view(), b, gate.view()).unwrap();
        prop_assert_eq!(&bytes(&device, &[&stored]), &y);
        let apart = ops::swiglu(&device, gate.view(), stored.view()).unwrap();
        prop_assert_eq!(bytes(&device, &[&beside]), bytes(&device, &[&apart]));
    }

    #[test]
    fn all_of_an_epilogue_has_the_same_bits_everywhere(
        m in 1usize..40, n in 1usize..80, k in 1usize..80, dtype in floating(), gated: bool, seed: u64,
    ) {
        same_everywhere(|device| {
            let mut s = Stream::new(seed);
            let [x, w, gate] = [(m, k), (n, k), (m, n)]
                .map(|(r, c)| random(device, dtype, Shape::matrix(r, c), 1.0, &mut s));
            let b = random(device, dtype, Shape::vector(n), 1.0, &mut s);
            let [mut y, mut out] =
                [(); 2].map(|()| random(device, dtype, Shape::matrix(m, n), 1.0, &mut s));
            let to = out.view_mut().slice;
            let activation = if gated {
                Activation::Swiglu { gate: gate.view().slice, out: to }
            } else {
                Activation::Gelu { out: to }
            };
            let epilogue =
                Epilogue { accumulate: true, bias: Some(b.view().slice), activation: Some(activation) };
            let (layout, dims) = (MatmulLayout::Nt, MatmulDims { m, n, k });
            device.matmul(layout, dims, x.view().slice, w.view().slice, y.view_mut().slice, epilogue);
            bytes(device, &[&y, &out])
        });
    }
}
