//! Every operation on bf16 is that on the same numbers in f32, whose results are rounded once.
//!
//! That the f32 operation is right, other tests show; that rounding is right, the library that rounds here.

mod common;

use common::attention::{Case, cases_of};
use common::*;
use memwall_tensor::device::{Dropout, Memory};
use memwall_tensor::ops::{AttentionForward, NormWeights, Normed};
use memwall_tensor::{Category, Cpu, DType, Shape, Tensor, bf16, ops};
use proptest::prelude::*;

/// What an operation made of operands of one type.
struct Made {
    /// Results in the operands' type.
    rounded: Vec<Tensor<Cpu>>,
    /// Results in f32 whatever that is.
    exact: Vec<Tensor<Cpu>>,
}

/// Operands of one type on a device.
struct Operands<'a> {
    device: &'a Cpu,
    dtype: DType,
    stream: Stream,
}

impl Operands<'_> {
    /// Random numbers within `-size .. size` that both types hold.
    fn random(&mut self, shape: Shape, size: f32) -> Tensor<Cpu> {
        let values = self.stream.floats(shape.len(), size);
        typed(self.device, self.dtype, shape, &values)
    }
}

/// Fails unless `run` yields the same numbers for both types of operands, but for one rounding.
fn rounded_once(threads: usize, seed: u64, run: impl Fn(&Cpu, &mut Operands<'_>) -> Made) {
    let device = cpu(threads);
    let [wide, low_made] =
        FLOATS.map(|dtype| run(&device, &mut Operands { device: &device, dtype, stream: Stream::new(seed) }));
    for (i, (w, l)) in wide.rounded.iter().zip(&low_made.rounded).enumerate() {
        assert_eq!((w.dtype(), l.dtype()), (DType::F32, DType::BF16), "result {i}");
        let want = low(&floats(&device, w));
        let got = download::<_, bf16>(&device, l);
        let differs = got.iter().zip(&want).position(|(a, b)| a.to_bits() != b.to_bits());
        assert!(got.len() == want.len() && differs.is_none(), "result {i} differs from element {differs:?}");
    }
    for (i, (w, l)) in wide.exact.iter().zip(&low_made.exact).enumerate() {
        assert_eq!(bits(&floats(&device, w)), bits(&floats(&device, l)), "f32 result {i}");
    }
}

/// A tensor of f32 with the numbers of another.
fn widened(device: &Cpu, t: &Tensor<Cpu>) -> Tensor<Cpu> {
    upload(device, t.shape(), &values(device, t))
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn attention_in_bf16_is_that_of_f32_rounded_once(case in cases_of(150), threads in 1usize..=3) {
        let (device, d) = (cpu(threads), case.dims);
        let (low_in, wide_in) = (case.load(&device, DType::BF16), rounded(&case).load(&device, DType::F32));
        let low_f = ops::attention(&device, d, low_in.input()).unwrap();
        let wide_f = ops::attention(&device, d, wide_in.input()).unwrap();
        prop_assert_eq!(low_f.lse.dtype(), DType::F32);
        prop_assert_eq!(download::<_, bf16>(&device, &low_f.out), low(&floats(&device, &wide_f.out)));
        prop_assert_eq!(bits(&floats(&device, &low_f.lse)), bits(&floats(&device, &wide_f.lse)));

        // The backward reads the result as it was rounded.
        let wide_f = AttentionForward { out: widened(&device, &low_f.out), lse: wide_f.lse };
        let low_b = ops::attention_backward(&device, d, low_in.input(), &low_f, low_in.dout.view()).unwrap();
        let wide_b = ops::attention_backward(&device, d, wide_in.input(), &wide_f, wide_in.dout.view()).unwrap();
        for (l, w) in [(low_b.dq, wide_b.dq), (low_b.dk, wide_b.dk), (low_b.dv, wide_b.dv)] {
            prop_assert_eq!(l.shape(), w.shape());
            prop_assert_eq!(download::<_, bf16>(&device, &l), low(&floats(&device, &w)));
        }
    }

    #[test]
    fn norms_in_bf16_are_those_of_f32_rounded_once(
        rows in 1usize..30, dim in 1usize..200, bias: bool, accumulate: bool, threads in 1usize..=3, seed: u64,
    ) {
        rounded_once(threads, seed, |d, operands| {
            let (matrix, vector) = (Shape::matrix(rows, dim), Shape::vector(dim));
            let [x, dy, mut dx] = [2.0, 1.0, 1.0].map(|size| operands.random(matrix, size));
            let [w, b] = [(); 2].map(|()| operands.random(vector, 2.0));
            let weights = NormWeights { w: w.view(), b: bias.then(|| b.view()), eps: 1e-5 };
            let normed = ops::norm(d, x.view(), weights).unwrap();
            ops::norm_input_gradient(d, x.view(), w.view(), &normed, dy.view(), dx.view_mut()).unwrap();
            let mut dw = upload(d, vector, &operands.stream.floats(dim, 1.0));
            ops::norm_weight_gradient(d, x.view(), &normed, dy.view(), dw.view_mut(), accumulate).unwrap();
            let Normed { y, mean, rstd } = normed;
            Made { rounded: vec![y, dx], exact: mean.into_iter().chain([rstd, dw]).collect() }
        });
    }

    #[test]
    fn activations_in_bf16_are_those_of_f32_rounded_once(
        n in 1usize..2000, size in 0.1f32..20.0, threads in 1usize..=3, seed: u64,
    ) {
        rounded_once(threads, seed, |d, operands| {
            let shape = Shape::vector(n);
            let [mut gate, mut up, mut x] = [(); 3].map(|()| operands.random(shape, size));
            let dout = operands.random(shape, 1.0);
            let swiglu = ops::swiglu(d, gate.view(), up.view()).unwrap();
            ops::swiglu_backward(d, gate.view_mut(), up.view_mut(), dout.view()).unwrap();
            let gelu = ops::gelu(d, x.view()).unwrap();
            ops::gelu_backward(d, x.view_mut(), dout.view()).unwrap();
            Made { rounded: vec![swiglu, gate, up, gelu, x], exact: vec![] }
        });
    }

    #[test]
    fn rope_in_bf16_is_that_of_f32_rounded_once(
        rows in 1usize..20, heads in 1usize..4, half in 1usize..40, inverse: bool, threads in 1usize..=3,
        seed: u64,
    ) {
        rounded_once(threads, seed, |d, operands| {
            let mut x = operands.random(Shape::matrix(rows, heads * 2 * half), 2.0);
            let table = matrix(d, 30, &operands.stream.floats(30 * 2 * half, 1.0));
            let positions = vector(d, &operands.stream.ids(rows, 30));
            ops::rope(d, x.view_mut(), positions.view(), table.view(), inverse).unwrap();
            Made { rounded: vec![x], exact: vec![] }
        });
    }

    #[test]
    fn lookups_sums_and_columns_in_bf16_are_those_of_f32_rounded_once(
        tokens in 1usize..40, vocabulary in 1usize..20, dim in 2usize..150, accumulate: bool,
        threads in 1usize..=3, seed: u64,
    ) {
        rounded_once(threads, seed, |d, operands| {
            let table = operands.random(Shape::matrix(vocabulary, dim), 1.0);
            let ids = vector(d, &operands.stream.ids(tokens, vocabulary));
            let [dy, mut x] = [(); 2].map(|()| operands.random(Shape::matrix(tokens, dim), 1.0));
            let found = ops::embedding(d, ids.view(), table.view()).unwrap();
            ops::add_embedding(d, ids.view(), table.view(), x.view_mut()).unwrap();
            let mut sum = ops::copy_like(d, dy.view()).unwrap();
            ops::add(d, sum.view_mut(), found.view()).unwrap();
            let part = ops::columns(d, dy.view(), 1, dim - 1).unwrap();
            let mut dropped = ops::copy_like(d, dy.view()).unwrap();
            let key = vector(d, &[7i64]);
            let dropout = Dropout { keys: key.view().slice, salt: seed, rate: 0.3 };
            ops::dropout(d, dropped.view_mut(), dropout).unwrap();

            let mut dtable = matrix(d, vocabulary, &operands.stream.floats(vocabulary * dim, 1.0));
            ops::embedding_gradient(d, ids.view(), dy.view(), dtable.view_mut(), accumulate).unwrap();
            let mut db = vector(d, &operands.stream.floats(dim, 1.0));
            ops::bias_gradient(d, dy.view(), db.view_mut(), accumulate).unwrap();
            Made { rounded: vec![found, x, sum, part, dropped], exact: vec![dtable, db] }
        });
    }

    #[test]
    fn linear_layers_in_bf16_are_those_of_f32_rounded_once(
        m in 2usize..60, n in 1usize..60, k in 1usize..300, threads in 1usize..=3, seed: u64,
    ) {
        rounded_once(threads, seed, |d, operands| {
            let [x, w, dy] = [(m, k), (n, k), (m, n)].map(|(r, c)| operands.random(Shape::matrix(r, c), 1.0));
            let y = ops::linear(d, x.view(), w.view()).unwrap();
            let b = operands.random(Shape::vector(n), 1.0);
            let z = ops::affine(d, x.view(), w.view(), Some(b.view())).unwrap();
            let dx = ops::linear_input_gradient(d, dy.view(), w.view()).unwrap();
            let mut dw = matrix(d, n, &vec![0.0; n * k]);
            ops::linear_weight_gradient(d, dy.view(), x.view(), dw.view_mut(), false).unwrap();
            Made { rounded: vec![y, z, dx], exact: vec![dw] }
        });
    }

    #[test]
    fn a_cast_rounds_to_nearest_and_widens_exactly(
        patterns in prop::collection::vec(any::<u32>(), 1..700), threads in 1usize..=3,
    ) {
        let device = cpu(threads);
        let x: Vec<f32> = patterns.iter().map(|bits| f32::from_bits(*bits)).collect();
        assert_cast(&device, &x);
    }
}

/// The operands of an attention, rounded to bf16.
fn rounded(case: &Case) -> Case {
    let round = |x: &[f32]| low(x).iter().map(|x| x.to_f32()).collect::<Vec<_>>();
    let (q, k, v, dout) = (round(&case.q), round(&case.k), round(&case.v), round(&case.dout));
    Case { q, k, v, dout, ..case.clone() }
}

/// A new tensor with the elements of `t` in another type.
fn cast(device: &Cpu, t: &Tensor<Cpu>, dtype: DType) -> Tensor<Cpu> {
    let mut out = Tensor::new(device, t.shape(), dtype, t.placements(), Category::Activations).unwrap();
    device.cast(t.view().slice, out.view_mut().slice);
    out
}

fn assert_cast(device: &Cpu, x: &[f32]) {
    let rounded = cast(device, &vector(device, x), DType::BF16);
    let got = download::<_, bf16>(device, &rounded);
    for (x, got) in x.iter().zip(&got) {
        let want = bf16::from_f32(*x);
        let same = got.to_bits() == want.to_bits() || got.is_nan() && x.is_nan();
        assert!(same, "{x:e} ({:#x}) became {got}, not {want}", x.to_bits());
    }
    // Back, and in the type that it has: nothing changes.
    let back = floats(device, &cast(device, &rounded, DType::F32));
    assert_eq!(bits(&back), got.iter().map(|x| u32::from(x.to_bits()) << 16).collect::<Vec<_>>());
    assert_eq!(bytes(device, &[&cast(device, &rounded, DType::BF16)]), bytes(device, &[&rounded]));
}

#[test]
fn casts_keep_infinities_zeros_and_what_is_not_a_number_and_round_the_smallest_and_the_largest() {
    let device = cpu(2);
    let least = f32::from_bits(1);
    let mut x = vec![f32::INFINITY, 0.0, least, f32::MIN_POSITIVE, f32::MIN_POSITIVE - least, f32::MAX];
    // Halfway between neighbours in bf16, at an even and at an odd one, and beside; below the largest, a carry into
    // the exponent, and the two halves of the smallest.
    x.extend([0x3f80_8000u32, 0x3f80_8001, 0x3f80_7fff, 0x3f81_8000, 0x3fff_8000].map(f32::from_bits));
    x.extend([0x7f7f_7fff_u32, 0x7f7f_8000, 0x8000, 0x7fff, 0x8001, 0x1_8000].map(f32::from_bits));
    x.extend([0x7f80_0001_u32, 0x7fff_ffff, 0x7fc0_0000, 0x7f80_8000].map(f32::from_bits));
    x.extend(x.clone().iter().map(|x| -x));
    assert_cast(&device, &x);
    let all: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let wide = floats(&device, &cast(&device, &vector(&device, &all), DType::F32));
    assert_eq!(bits(&wide), all.iter().map(|x| u32::from(x.to_bits()) << 16).collect::<Vec<_>>());
    assert!(all.iter().zip(&wide).all(|(b, w)| b.to_f32() == *w || b.is_nan() && w.is_nan()));
}
