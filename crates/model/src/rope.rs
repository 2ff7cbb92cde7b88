//! Rotary position embedding: which angle each pair of dims turns by, per position.
//!
//! Su et al., "RoFormer", eq. 34: pair `i` of a head of `d` dims turns by `position * theta^(-2i/d)`.

use crate::ModelError;
use crate::keys::{Keys, positive_value as number};
use serde_json::Value;

/// How the inverse frequencies of a model trained on short sequences are stretched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All frequencies divided by `factor` (position interpolation).
    Linear {
        /// Stretch of the context, >= 1.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, those between interpolated.
    Llama3 {
        /// Stretch of the long wavelengths.
        factor: f64,
        /// Wavelengths above `original_max_position / low_freq_factor` are stretched fully.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the original training.
        original_max_position: f64,
    },
}

/// Rotary embedding of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeSpec {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// Stretch for long contexts.
    pub scaling: RopeScaling,
}

impl RopeSpec {
    /// Reads both dialects: `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling` (4).
    pub(crate) fn from_config(config: &Keys) -> Result<Self, ModelError> {
        let nested = config.get("rope_parameters").filter(|v| !v.is_null());
        let scaling = nested.or_else(|| config.get("rope_scaling").filter(|v| !v.is_null()));
        let theta = match nested.and_then(|p| p.get("rope_theta")).or_else(|| config.get("rope_theta")) {
            None => 10_000.0,
            Some(v) => number("rope_theta", v)?,
        };
        let scaling = match scaling {
            None => RopeScaling::None,
            Some(s) => Self::scaling(s)?,
        };
        Ok(Self { theta, scaling })
    }

    fn scaling(s: &Value) -> Result<RopeScaling, ModelError> {
        let kind = s.get("rope_type").or_else(|| s.get("type")).and_then(Value::as_str).unwrap_or("default");
        let field = |key: &'static str| match s.get(key) {
            None => Err(ModelError::Missing { key, meaning: "a parameter of the rope scaling" }),
            Some(v) => number(key, v),
        };
        match kind {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: field("factor")? }),
            "llama3" => {
                let (low, high) = (field("low_freq_factor")?, field("high_freq_factor")?);
                if high <= low {
                    return Err(ModelError::Invalid {
                        key: "high_freq_factor",
                        found: high.to_string(),
                        expected: format!("more than low_freq_factor ({low})"),
                    });
                }
                Ok(RopeScaling::Llama3 {
                    factor: field("factor")?,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_max_position: field("original_max_position_embeddings")?,
                })
            }
            other => Err(ModelError::Unsupported {
                key: "rope_type",
                found: format!("{other:?}"),
                reason: "only default, linear and llama3 are",
            }),
        }
    }

    /// Inverse frequencies of the `head_dim / 2` pairs, radians a position.
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f64> {
        (0..head_dim / 2)
            .map(|i| {
                let f = self.theta.powf(-(2.0 * i as f64) / head_dim as f64);
                match self.scaling {
                    RopeScaling::None => f,
                    RopeScaling::Linear { factor } => f / factor,
                    RopeScaling::Llama3 {
                        factor,
                        low_freq_factor,
                        high_freq_factor,
                        original_max_position,
                    } => {
                        let wavelength = std::f64::consts::TAU / f;
                        if wavelength > original_max_position / low_freq_factor {
                            f / factor
                        } else if wavelength < original_max_position / high_freq_factor {
                            f
                        } else {
                            let s = (original_max_position / wavelength - low_freq_factor)
                                / (high_freq_factor - low_freq_factor);
                            (1.0 - s) * f / factor + s * f
                        }
                    }
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_dialects_read_the_same_rope() {
        let four = json!({"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 4.0}});
        let five = json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4.0}});
        assert_eq!(
            RopeSpec::from_config(four.as_object().unwrap()),
            RopeSpec::from_config(five.as_object().unwrap())
        );
    }

    #[test]
    fn linear_scaling_divides_every_frequency() {
        let plain = RopeSpec { theta: 1e4, scaling: RopeScaling::None }.inverse_frequencies(8);
        let scaled =
            RopeSpec { theta: 1e4, scaling: RopeScaling::Linear { factor: 2.0 } }.inverse_frequencies(8);
        assert_eq!(plain[0], 1.0);
        for (p, s) in plain.iter().zip(&scaled) {
            assert_eq!(p / 2.0, *s);
        }
    }

    #[test]
    fn unknown_scalings_are_refused_by_name() {
        let e = RopeSpec::from_config(
            json!({"rope_scaling": {"type": "yarn", "factor": 2.0}}).as_object().unwrap(),
        )
        .unwrap_err();
        assert!(e.to_string().contains("yarn"), "{e}");
    }
}
