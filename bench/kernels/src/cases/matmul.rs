//! Matrix products of models.

use super::{Case, Kernel, Maker, product_flops};
use memwall_cli::profile::{LAYOUTS, product};
use memwall_engine::unit::Head;
use memwall_tensor::device::{Epilogue, Linear, MatmulDims, MatmulLayout};
use memwall_tensor::{DType, Slice, SliceMut};

/// A decoder of the Llama architecture with full heads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    /// Its name.
    pub(crate) name: &'static str,
    width: usize,
    inner: usize,
    vocabulary: usize,
    layers: usize,
    /// Tokens of a micro-batch.
    tokens: usize,
}

impl Model {
    /// 110 M parameters.
    pub(crate) const S: Model =
        Model { name: "S", width: 768, inner: 2048, vocabulary: 32000, layers: 12, tokens: 2048 };
    /// 5 M parameters.
    pub(crate) const XS: Model =
        Model { name: "XS", width: 256, inner: 688, vocabulary: 4096, layers: 4, tokens: 2048 };
    /// For tests.
    pub(crate) const TINY: Model =
        Model { name: "tiny", width: 16, inner: 24, vocabulary: 40, layers: 1, tokens: 32 };
}

/// One product of a model's step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    /// Layout.
    pub(crate) layout: MatmulLayout,
    /// Name of the layout.
    pub(crate) layout_name: &'static str,
    /// Sizes.
    pub(crate) dims: MatmulDims,
    /// How often a step makes it.
    pub(crate) count: usize,
}

/// The distinct products of a training step.
pub(crate) fn products(model: &Model) -> Vec<Product> {
    let Model { width, inner, vocabulary, layers, tokens, .. } = *model;
    // The head makes a chunk of tokens' logits at a time.
    let chunk = Head::chunk(vocabulary).min(tokens);
    let linears = [
        (tokens, width, width, 4 * layers),
        (tokens, inner, width, 2 * layers),
        (tokens, width, inner, layers),
        (chunk, vocabulary, width, tokens.div_ceil(chunk)),
    ];
    linears
        .into_iter()
        .flat_map(|(tokens, out, inputs, count)| linear((tokens, out, inputs), count))
        .collect()
}

/// The products of a matrix of `(tokens, outputs, inputs)`: forward, and the gradients of its input and its weight.
pub(super) fn linear(sizes: (usize, usize, usize), count: usize) -> [Product; 3] {
    LAYOUTS.map(|(layout, layout_name)| Product { layout, layout_name, dims: product(layout, sizes), count })
}

pub(super) fn kernel(of: &str, p: Product, dtype: DType) -> Kernel {
    let MatmulDims { m, n, k } = p.dims;
    Kernel {
        name: format!("matmul {of} {}", p.layout_name),
        size: format!("{m} x {n} x {k}"),
        dtype,
        build: Box::new(move |make: Maker<'_>| {
            // Gradients of weights are summed in f32.
            let result = if p.layout == MatmulLayout::Tn { DType::F32 } else { dtype };
            let (a, b) = (make.values(m * k, dtype)?, make.values(n * k, dtype)?);
            let mut c = make.zeros(m * n, result)?;
            let device = make.device;
            Ok(Case {
                flops: product_flops(&p),
                bytes: ((m * k + n * k) * dtype.bytes() + m * n * result.bytes()) as f64,
                run: Box::new(move || {
                    device.matmul(
                        p.layout,
                        p.dims,
                        Slice::all(&a),
                        Slice::all(&b),
                        SliceMut::all(&mut c),
                        Epilogue::store(),
                    );
                }),
            })
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_a_step_are_six_flops_a_parameter_and_token() {
        // Of a model's parameters, the norms' weights and an embedding of its own are in no product.
        for (model, parameters) in
            [(Model::S, 109_529_856 - 25 * 768), (Model::XS, 5_261_568 - 9 * 256 - 4096 * 256)]
        {
            let flops: f64 = products(&model).iter().map(|p| p.count as f64 * product_flops(p)).sum();
            // Each layer has 4 w^2 + 3 w i parameters in matrices, the head v w.
            let (w, i) = (model.width, model.inner);
            let matrices = model.layers * (4 * w * w + 3 * w * i) + model.vocabulary * w;
            assert_eq!(matrices, parameters, "{}", model.name);
            assert_eq!(flops, 6.0 * matrices as f64 * model.tokens as f64, "{}", model.name);
        }
    }
}
