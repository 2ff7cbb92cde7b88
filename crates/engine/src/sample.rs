//! Which token comes next, given logits.

use memwall_tensor::math;

/// How to choose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; 0 takes the likeliest token.
    pub temperature: f64,
    /// Only the likeliest so many tokens; 0 for all.
    pub top_k: usize,
    /// Only the likeliest tokens whose probabilities reach this sum; 1 for all.
    pub top_p: f64,
    /// Seed of the choices.
    pub seed: u64,
}

/// Chooses tokens: the n-th choice depends on settings, n and logits alone.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    drawn: u64,
}

impl Sampler {
    /// A sampler at its first choice.
    pub fn new(sampling: Sampling) -> Self {
        Self { sampling, drawn: 0 }
    }

    /// The next token. The first of equally likely tokens counts as likelier.
    pub fn choose(&mut self, logits: &[f32]) -> usize {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let s = &self.sampling;
        if s.temperature == 0.0 || order.is_empty() {
            return order.first().copied().unwrap_or(0);
        }
        if s.top_k > 0 {
            order.truncate(s.top_k);
        }
        let top = f64::from(logits[order[0]]);
        let mut p: Vec<f64> =
            order.iter().map(|&i| ((f64::from(logits[i]) - top) / s.temperature).exp()).collect();
        let sum: f64 = p.iter().sum();
        let mut reached = 0.0;
        let kept = p
            .iter()
            .position(|x| {
                reached += x / sum;
                reached >= s.top_p
            })
            .map_or(p.len(), |last| last + 1);
        p.truncate(kept);
        let key = math::stream_key(s.seed, "generate");
        let unit = (math::random_u64(key, self.drawn) >> 11) as f64 / (1u64 << 53) as f64;
        self.drawn += 1;
        let mut rest = unit * p.iter().sum::<f64>();
        for (i, x) in p.iter().enumerate() {
            rest -= x;
            if rest < 0.0 {
                return order[i];
            }
        }
        order[kept - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(sampling: Sampling, logits: &[f32], n: usize) -> Vec<usize> {
        let mut sampler = Sampler::new(sampling);
        let mut c = vec![0; logits.len()];
        for _ in 0..n {
            c[sampler.choose(logits)] += 1;
        }
        c
    }

    const ALL: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 3 };

    #[test]
    fn tokens_come_as_often_as_their_probability_says() {
        let logits = [0.0, (2f32).ln(), (5f32).ln()];
        let c = counts(ALL, &logits, 8000);
        for (c, want) in c.iter().zip([1000.0, 2000.0, 5000.0]) {
            // Five standard deviations of the widest binomial.
            assert!((*c as f64 - want).abs() < 220.0, "{c} for {want}");
        }
    }

    #[test]
    fn top_k_top_p_and_zero_temperature_leave_out_the_rest() {
        let logits = [1.0, 3.0, 2.0, 3.0];
        assert_eq!(counts(Sampling { temperature: 0.0, ..ALL }, &logits, 50), [0, 50, 0, 0]);
        let k = counts(Sampling { top_k: 2, ..ALL }, &logits, 200);
        assert!(k[0] == 0 && k[2] == 0 && k[1] > 0 && k[3] > 0);
        assert_eq!(counts(Sampling { top_p: 0.01, ..ALL }, &logits, 50), [0, 50, 0, 0]);
    }

    #[test]
    fn the_same_seed_chooses_the_same_tokens() {
        let logits = [0.1, 0.2, 0.3, 0.4];
        let run = |seed| {
            let mut s = Sampler::new(Sampling { seed, ..ALL });
            (0..50).map(|_| s.choose(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
