//! Where each parameter lies in its unit's flat buffer. Only the padding at the end depends on the ranks.

use crate::shares::piece;
use memwall_model::{ModelSpec, ParamId};
use memwall_tensor::Shape;
use std::ops::Range;

/// Elements: segments start on cache lines.
const ALIGN: usize = 16;
/// Elements: a flat buffer is, for each rank that holds a part, a whole number of the blocks in which norms are summed, so
/// that all shardings sum the same blocks.
pub(crate) const BLOCK: usize = 1024;

/// One parameter's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The parameter.
    pub param: ParamId,
    /// First element in the flat buffer.
    pub offset: usize,
    /// Dims.
    pub shape: Shape,
    /// Whether weight decay applies.
    pub decay: bool,
    /// Whether it lies in the unit's frozen buffer.
    pub frozen: bool,
}

/// A flat buffer of one unit: of its trained parameters, or of its frozen ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatUnit {
    /// Parameters in order; gaps between them are zero, always.
    pub segments: Vec<Segment>,
    /// Elements, gaps and padding included.
    pub len: usize,
}

impl Segment {
    /// Its elements in the flat buffer.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.shape.len()
    }
}

/// The flat buffers of a model, and where each parameter is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatLayout {
    /// Trained parameters, one for each unit, in forward order.
    pub units: Vec<FlatUnit>,
    /// Frozen parameters, one for each unit; of most units empty.
    pub frozen: Vec<FlatUnit>,
    places: Vec<(usize, Segment)>,
}

impl FlatLayout {
    /// Lays out the parameters of `spec` in buffers that are cut in `parts`.
    ///
    /// # Panics
    /// When a parameter has other than one or two dims; no spec has.
    pub fn new(spec: &ModelSpec, parts: usize) -> Self {
        let mut places = vec![None; spec.params.len()];
        let mut flat = |frozen: bool| -> Vec<FlatUnit> {
            let mut lay_out = |(index, params): (usize, &Vec<ParamId>)| {
                let (mut segments, mut end) = (Vec::new(), 0usize);
                for &param in params {
                    let p = spec.param(param);
                    if p.frozen != frozen {
                        continue;
                    }
                    let shape = Shape::from_dims(&p.shape).expect("parameters are vectors or matrices");
                    let offset = end.next_multiple_of(ALIGN);
                    let segment = Segment { param, offset, shape, decay: p.decay, frozen };
                    end = segment.offset + shape.len();
                    segments.push(segment);
                    places[param.0] = Some((index, segment));
                }
                FlatUnit { segments, len: end.next_multiple_of(BLOCK * parts) }
            };
            spec.units.iter().map(|unit| &unit.params).enumerate().map(&mut lay_out).collect()
        };
        let (units, frozen) = (flat(false), flat(true));
        let places = places.into_iter().map(|p| p.expect("every parameter has one owner")).collect();
        Self { units, frozen, places }
    }

    /// The buffer that a parameter lies in.
    pub fn flat(&self, param: ParamId) -> &FlatUnit {
        let (unit, segment) = self.places[param.0];
        if segment.frozen { &self.frozen[unit] } else { &self.units[unit] }
    }

    /// The elements of a parameter that part `index` of `parts` has, where buffers are cut as they were laid out for.
    pub fn part(&self, param: ParamId, index: usize, parts: usize) -> Range<usize> {
        let len = self.flat(param).len / parts;
        piece(self, param, &(index * len..(index + 1) * len)).0
    }

    /// The unit that owns a parameter, and its place in the buffer.
    pub fn place(&self, param: ParamId) -> (usize, Segment) {
        self.places[param.0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwall_model::ModelConfig;

    #[test]
    fn parts_are_whole_blocks_and_leave_every_segment_where_it_is() {
        let config = r#"{"hidden_size": 10, "intermediate_size": 7, "num_hidden_layers": 2,
            "num_attention_heads": 1, "vocab_size": 13}"#;
        let spec = ModelSpec::new(ModelConfig::from_json(config).unwrap());
        let whole = FlatLayout::new(&spec, 1);
        for parts in 2..6 {
            let cut = FlatLayout::new(&spec, parts);
            for (a, b) in whole.units.iter().zip(&cut.units) {
                assert_eq!(a.segments, b.segments);
                assert!(b.len % (parts * BLOCK) == 0 && b.len >= a.len && b.len < a.len + parts * BLOCK);
            }
        }
    }

    #[test]
    fn segments_are_aligned_disjoint_and_complete() {
        let config = r#"{"hidden_size": 10, "intermediate_size": 7, "num_hidden_layers": 2,
            "num_attention_heads": 1, "vocab_size": 13}"#;
        let spec = ModelSpec::new(ModelConfig::from_json(config).unwrap());
        let layout = FlatLayout::new(&spec, 1);
        for unit in &layout.units {
            let mut end = 0;
            for s in &unit.segments {
                assert!(s.offset % ALIGN == 0 && s.offset >= end && s.offset < end + ALIGN);
                end = s.offset + s.shape.len();
            }
            assert!(unit.len % BLOCK == 0 && unit.len >= end && unit.len < end + BLOCK);
        }
        let n: usize = layout.units.iter().flat_map(|u| &u.segments).map(|s| s.shape.len()).sum();
        assert_eq!(n as u64, spec.parameter_count());
    }
}
