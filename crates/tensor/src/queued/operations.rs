//! Every operation, recorded with its operands. An optional operand that is absent is stood in for by another that is
//! read, so that an operation has one count of operands.

use super::{Queued, QueuedBuf};
use crate::device::{
    Activation, AdamW, Attention, AttentionDims, AttentionInput, AttentionSaved, Columns, Dropout, Epilogue,
    LayerNorm, Linear, Loss, MatmulDims, MatmulLayout, Norms, Optimizer, Pointwise, RopeDims, RowStats,
};
use crate::{Slice, SliceMut};

type S<'a> = Slice<'a, QueuedBuf>;
type M<'a> = SliceMut<'a, QueuedBuf>;

impl Linear for Queued {
    fn matmul(
        &self,
        layout: MatmulLayout,
        d: MatmulDims,
        a: S<'_>,
        b: S<'_>,
        c: M<'_>,
        epilogue: Epilogue<'_, QueuedBuf>,
    ) {
        let Epilogue { accumulate, bias, activation } = epilogue;
        let biased = bias.is_some();
        fn with<B: crate::device::Buffer>(
            accumulate: bool,
            bias: Slice<'_, B>,
            biased: bool,
        ) -> Epilogue<'_, B> {
            Epilogue { accumulate, bias: Some(bias).filter(|_| biased), activation: None }
        }
        let reads = [a, b, bias.unwrap_or(a)];
        match activation {
            None => self.issue("matmul", reads, [c], move |cpu, [a, b, bias], [c]| {
                cpu.matmul(layout, d, a, b, c, with(accumulate, bias, biased));
            }),
            Some(Activation::Gelu { out }) => {
                self.issue("matmul", reads, [c, out], move |cpu, [a, b, bias], [c, out]| {
                    let activation = Some(Activation::Gelu { out });
                    cpu.matmul(layout, d, a, b, c, Epilogue { activation, ..with(accumulate, bias, biased) });
                });
            }
            Some(Activation::Swiglu { gate, out }) => {
                let reads = [a, b, bias.unwrap_or(a), gate];
                self.issue("matmul", reads, [c, out], move |cpu, [a, b, bias, gate], [c, out]| {
                    let activation = Some(Activation::Swiglu { gate, out });
                    cpu.matmul(layout, d, a, b, c, Epilogue { activation, ..with(accumulate, bias, biased) });
                });
            }
        }
    }
}

impl Attention for Queued {
    fn attention(&self, d: AttentionDims, i: AttentionInput<'_, QueuedBuf>, out: M<'_>, lse: M<'_>) {
        let zeros = i.dropout.map(|d| (d.salt, d.rate));
        let keys = i.dropout.map_or(i.positions, |d| d.keys);
        let reads = [i.q, i.k, i.v, i.positions, keys];
        self.issue("attention", reads, [out, lse], move |cpu, [q, k, v, positions, keys], [out, lse]| {
            let dropout = zeros.map(|(salt, rate)| Dropout { keys, salt, rate });
            cpu.attention(d, AttentionInput { q, k, v, positions, dropout }, out, lse);
        });
    }

    fn attention_backward(
        &self,
        d: AttentionDims,
        i: AttentionInput<'_, QueuedBuf>,
        saved: AttentionSaved<'_, QueuedBuf>,
        dout: S<'_>,
        delta: M<'_>,
        dq: M<'_>,
        dk: M<'_>,
        dv: M<'_>,
    ) {
        let zeros = i.dropout.map(|d| (d.salt, d.rate));
        let keys = i.dropout.map_or(i.positions, |d| d.keys);
        let reads = [i.q, i.k, i.v, i.positions, keys, saved.out, saved.lse, dout];
        self.issue(
            "attention_backward",
            reads,
            [delta, dq, dk, dv],
            move |cpu, reads, [delta, dq, dk, dv]| {
                let [q, k, v, positions, keys, out, lse, dout] = reads;
                let dropout = zeros.map(|(salt, rate)| Dropout { keys, salt, rate });
                let input = AttentionInput { q, k, v, positions, dropout };
                cpu.attention_backward(d, input, AttentionSaved { out, lse }, dout, delta, dq, dk, dv);
            },
        );
    }
}

impl Norms for Queued {
    fn rms_norm(&self, x: S<'_>, w: S<'_>, eps: f32, y: M<'_>, rstd: M<'_>) {
        self.issue("rms_norm", [x, w], [y, rstd], move |cpu, [x, w], [y, rstd]| {
            cpu.rms_norm(x, w, eps, y, rstd)
        });
    }

    fn rms_norm_input_gradient(&self, x: S<'_>, w: S<'_>, rstd: S<'_>, dy: S<'_>, dx: M<'_>) {
        self.issue("rms_norm_input_gradient", [x, w, rstd, dy], [dx], |cpu, [x, w, rstd, dy], [dx]| {
            cpu.rms_norm_input_gradient(x, w, rstd, dy, dx);
        });
    }

    fn rms_norm_weight_gradient(&self, x: S<'_>, rstd: S<'_>, dy: S<'_>, dw: M<'_>, accumulate: bool) {
        self.issue("rms_norm_weight_gradient", [x, rstd, dy], [dw], move |cpu, [x, rstd, dy], [dw]| {
            cpu.rms_norm_weight_gradient(x, rstd, dy, dw, accumulate);
        });
    }

    fn layer_norm(&self, x: S<'_>, p: LayerNorm<'_, QueuedBuf>, y: M<'_>, mean: M<'_>, rstd: M<'_>) {
        let eps = p.eps;
        self.issue("layer_norm", [x, p.w, p.b], [y, mean, rstd], move |cpu, [x, w, b], [y, mean, rstd]| {
            cpu.layer_norm(x, LayerNorm { w, b, eps }, y, mean, rstd);
        });
    }

    fn layer_norm_input_gradient(
        &self,
        x: S<'_>,
        w: S<'_>,
        rows: RowStats<'_, QueuedBuf>,
        dy: S<'_>,
        dx: M<'_>,
    ) {
        let reads = [x, w, rows.mean, rows.rstd, dy];
        self.issue("layer_norm_input_gradient", reads, [dx], |cpu, [x, w, mean, rstd, dy], [dx]| {
            cpu.layer_norm_input_gradient(x, w, RowStats { mean, rstd }, dy, dx);
        });
    }

    fn layer_norm_weight_gradient(
        &self,
        x: S<'_>,
        rows: RowStats<'_, QueuedBuf>,
        dy: S<'_>,
        dw: M<'_>,
        accumulate: bool,
    ) {
        let reads = [x, rows.mean, rows.rstd, dy];
        self.issue("layer_norm_weight_gradient", reads, [dw], move |cpu, [x, mean, rstd, dy], [dw]| {
            cpu.layer_norm_weight_gradient(x, RowStats { mean, rstd }, dy, dw, accumulate);
        });
    }
}

impl Pointwise for Queued {
    fn embedding(&self, ids: S<'_>, table: S<'_>, dim: usize, out: M<'_>, accumulate: bool) {
        self.issue("embedding", [ids, table], [out], move |cpu, [ids, table], [out]| {
            cpu.embedding(ids, table, dim, out, accumulate);
        });
    }

    fn embedding_gradient(&self, ids: S<'_>, dy: S<'_>, dim: usize, dtable: M<'_>, accumulate: bool) {
        self.issue("embedding_gradient", [ids, dy], [dtable], move |cpu, [ids, dy], [dtable]| {
            cpu.embedding_gradient(ids, dy, dim, dtable, accumulate);
        });
    }

    fn rope(&self, d: RopeDims, x: M<'_>, positions: S<'_>, table: S<'_>, inverse: bool) {
        self.issue("rope", [positions, table], [x], move |cpu, [positions, table], [x]| {
            cpu.rope(d, x, positions, table, inverse);
        });
    }

    fn swiglu(&self, gate: S<'_>, up: S<'_>, out: M<'_>) {
        self.issue("swiglu", [gate, up], [out], |cpu, [gate, up], [out]| cpu.swiglu(gate, up, out));
    }

    fn swiglu_backward(&self, gate: M<'_>, up: M<'_>, dout: S<'_>) {
        self.issue("swiglu_backward", [dout], [gate, up], |cpu, [dout], [gate, up]| {
            cpu.swiglu_backward(gate, up, dout);
        });
    }

    fn gelu(&self, x: S<'_>, out: M<'_>) {
        self.issue("gelu", [x], [out], |cpu, [x], [out]| cpu.gelu(x, out));
    }

    fn gelu_backward(&self, x: M<'_>, dout: S<'_>) {
        self.issue("gelu_backward", [dout], [x], |cpu, [dout], [x]| cpu.gelu_backward(x, dout));
    }

    fn add(&self, x: M<'_>, y: S<'_>) {
        self.issue("add", [y], [x], |cpu, [y], [x]| cpu.add(x, y));
    }

    fn sum_rows(&self, x: S<'_>, out: M<'_>, accumulate: bool) {
        self.issue("sum_rows", [x], [out], move |cpu, [x], [out]| cpu.sum_rows(x, out, accumulate));
    }

    fn copy_columns(&self, src: S<'_>, from: Columns, dst: M<'_>, to: Columns, cols: usize) {
        self.issue("copy_columns", [src], [dst], move |cpu, [src], [dst]| {
            cpu.copy_columns(src, from, dst, to, cols);
        });
    }

    fn dropout(&self, x: M<'_>, d: Dropout<'_, QueuedBuf>) {
        let (salt, rate) = (d.salt, d.rate);
        self.issue("dropout", [d.keys], [x], move |cpu, [keys], [x]| {
            cpu.dropout(x, Dropout { keys, salt, rate })
        });
    }
}

impl Loss for Queued {
    fn cross_entropy(&self, logits: M<'_>, targets: S<'_>, losses: M<'_>, scale: Option<f32>) {
        self.issue("cross_entropy", [targets], [logits, losses], move |cpu, [targets], [logits, losses]| {
            cpu.cross_entropy(logits, targets, losses, scale);
        });
    }

    fn sum_wide(&self, values: S<'_>, scale: f64, into: M<'_>) {
        self.issue("sum_wide", [values], [into], move |cpu, [values], [into]| {
            cpu.sum_wide(values, scale, into)
        });
    }
}

impl Optimizer for Queued {
    fn accumulate(&self, values: S<'_>, sums: M<'_>, fresh: bool) {
        self.issue("accumulate", [values], [sums], move |cpu, [values], [sums]| {
            cpu.accumulate(values, sums, fresh)
        });
    }

    fn sum_squares(&self, gradient: S<'_>, into: M<'_>) {
        self.issue("sum_squares", [gradient], [into], |cpu, [gradient], [into]| {
            cpu.sum_squares(gradient, into)
        });
    }

    fn clip_factor(&self, squares: S<'_>, limit: Option<f32>, out: M<'_>) {
        self.issue("clip_factor", [squares], [out], move |cpu, [squares], [out]| {
            cpu.clip_factor(squares, limit, out);
        });
    }

    fn adamw(
        &self,
        s: AdamW,
        clip: S<'_>,
        gradient: S<'_>,
        p: M<'_>,
        first: M<'_>,
        second: M<'_>,
        rounded: Option<M<'_>>,
    ) {
        let reads = [clip, gradient];
        match rounded {
            Some(rounded) => {
                self.issue(
                    "adamw",
                    reads,
                    [p, first, second, rounded],
                    move |cpu, [clip, g], [p, m, v, r]| {
                        cpu.adamw(s, clip, g, p, m, v, Some(r));
                    },
                );
            }
            None => self.issue("adamw", reads, [p, first, second], move |cpu, [clip, g], [p, m, v]| {
                cpu.adamw(s, clip, g, p, m, v, None);
            }),
        }
    }
}
