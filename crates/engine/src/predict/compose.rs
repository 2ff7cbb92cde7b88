//! A step of a large model, composed from a recorded step of a small one: the same units, but of each kind one.

use super::Place;
use super::tape::{Act, Tape, Which, cut};
use super::{Events, Prediction};
use crate::error::InUnit;
use crate::{EngineError, Rank, Settings};
use memwall_comm::{Groups, Traffic};
use memwall_model::{ModelSpec, ParamId};
use memwall_tensor::device::Memory;
use memwall_tensor::{Account, Block, Description, Dry, Event, Flops, Phase};

/// Units in the order in which a micro-batch of a step has them at work.
fn training(units: usize) -> Vec<(Phase, usize)> {
    let forward = (0..units - 1).map(|u| (Phase::Forward, u));
    forward.chain((0..units).rev().map(|u| (Phase::Backward, u))).collect()
}

/// The same of a micro-batch of an evaluation.
fn evaluation(units: usize) -> Vec<(Phase, usize)> {
    (0..units).map(|u| (Phase::Evaluation, u)).collect()
}

/// As [`super::predict`]; `None` where tapes cannot say what the units do.
pub(super) fn predict(
    spec: &ModelSpec,
    settings: &Settings,
    place: Place,
    description: Description,
    budget: u64,
    evaluates: bool,
) -> Result<Option<Prediction>, EngineError> {
    let device = Dry::new(description, budget)?;
    let ledger = device.ledger().clone();
    ledger.record();
    let mut rank = Rank::new(device, Groups::dry(place.mesh, place.rank), spec.clone(), *settings)?;
    let (initial, init) = (ledger.state(), ledger.recorded());
    let mut account = ledger.account();
    let traffic = traffic_of_a_step(&mut rank)?;
    drop(rank);

    let Some((small, alike)) = one_of_each_kind(spec) else { return Ok(None) };
    let Some(recorded) = Recorded::new(small, settings, place, description, evaluates)? else {
        return Ok(None);
    };
    let units = spec.units.len();
    let (train, evaluate) = (training(units), evaluation(units));
    account.enter(Phase::Forward);
    let micro_batch = replay(&mut account, &recorded.training, &train, &alike)?;
    account.enter(Phase::Optimizer);
    let mut evaluation = Vec::new();
    if evaluates {
        account.enter(Phase::Evaluation);
        evaluation = replay(&mut account, &recorded.evaluation, &evaluate, &alike)?;
    }
    account.enter(Phase::Checkpoint);
    let flops: Flops = train.iter().map(|(phase, unit)| recorded.flops(*phase, alike[*unit])).sum();
    Ok(Some(Prediction {
        initial,
        run: account.state(),
        step_flops: flops.times(settings.micro_batches as u64),
        step_traffic: traffic,
        events: Events::new(description, init, micro_batch, evaluation),
    }))
}

/// What the rank's collectives move in a step. They have no buffers but those that live as long as the rank, so that to carry
/// them out changes nothing in its account.
fn traffic_of_a_step(rank: &mut Rank<Dry>) -> Result<[Traffic; 3], EngineError> {
    if rank.groups().mesh.world() > 1 {
        rank.begin(Phase::Forward)?;
        rank.collectives_of_micro_batches()?;
        rank.reduce()?;
        rank.update(0.0)?;
    }
    Ok(rank.groups().traffic())
}

/// A model of one block of each kind, and for each unit of `spec` its like there.
fn one_of_each_kind(spec: &ModelSpec) -> Option<(ModelSpec, Vec<usize>)> {
    // Blocks of one model differ in nothing but what they see, and what of them is frozen.
    let frozen = |unit: usize| -> Vec<bool> {
        spec.units[unit].params.iter().map(|p| spec.param(*p).frozen).collect()
    };
    let mut kinds: Vec<(Option<usize>, Vec<bool>)> = Vec::new();
    let mut alike = vec![0];
    for (layer, window) in spec.config.windows.iter().enumerate() {
        let kind = (*window, frozen(layer + 1));
        let at = kinds.iter().position(|k| *k == kind).unwrap_or_else(|| {
            kinds.push(kind);
            kinds.len() - 1
        });
        alike.push(at + 1);
    }
    alike.push(kinds.len() + 1);
    let mut config = spec.config.clone();
    (config.layers, config.windows) = (kinds.len(), kinds.iter().map(|k| k.0).collect());
    let mut small = ModelSpec::new(config);
    for (unit, like) in alike.iter().enumerate() {
        let params = small.units.get(*like)?.params.clone();
        params.iter().zip(frozen(unit)).for_each(|(p, frozen)| small.params[p.0].frozen = frozen);
    }
    // Should a family's blocks ever differ in more, there is no such model.
    let shapes_are_alike = |unit: usize| {
        let (Some(a), Some(b)) = (spec.units.get(unit), small.units.get(alike[unit])) else { return false };
        fn shape(spec: &ModelSpec, p: ParamId) -> &[usize] {
            &spec.param(p).shape
        }
        let mut pairs = a.params.iter().zip(&b.params);
        a.params.len() == b.params.len() && pairs.all(|(a, b)| shape(spec, *a) == shape(&small, *b))
    };
    let same = spec.units.len() == alike.len() && (0..alike.len()).all(shapes_are_alike);
    same.then_some((small, alike))
}

/// A step and an evaluation of the small model.
struct Recorded {
    rank: Rank<Dry>,
    training: Vec<Tape>,
    evaluation: Vec<Tape>,
}

impl Recorded {
    fn new(
        small: ModelSpec,
        settings: &Settings,
        place: Place,
        description: Description,
        evaluates: bool,
    ) -> Result<Option<Self>, EngineError> {
        // The budget is the large model's.
        let device = Dry::new(description, u64::MAX)?;
        let ledger = device.ledger().clone();
        let units = small.units.len();
        let settings = Settings { micro_batches: 1, ..*settings };
        let mut rank = Rank::new(device, Groups::dry(place.mesh, place.rank), small, settings)?;
        let before = ledger.account();
        let tapes = |order: Vec<(Phase, usize)>| {
            let events = ledger.recorded();
            let tapes = cut(&events, &order)?;
            // What the tapes say of the small model is what it did.
            let itself: Vec<usize> = (0..units).collect();
            let mut account = before.clone();
            (replay(&mut account, &tapes, &order, &itself).ok()? == events).then_some(tapes)
        };
        ledger.record();
        rank.begin(Phase::Forward)?;
        rank.forward_backward(1.0, true)?;
        ledger.enter(Phase::Optimizer);
        rank.reduce()?;
        rank.update(0.0)?;
        let Some(training) = tapes(training(units)) else { return Ok(None) };
        ledger.record();
        if evaluates {
            rank.begin(Phase::Evaluation)?;
            rank.forward(1.0)?;
            ledger.at_unit(None);
            rank.sum_over_ranks()?;
        }
        let order = if evaluates { evaluation(units) } else { Vec::new() };
        let Some(evaluation) = tapes(order) else { return Ok(None) };
        Ok(Some(Self { rank, training, evaluation }))
    }

    fn flops(&self, phase: Phase, unit: usize) -> Flops {
        self.rank.device().work(phase, unit)
    }
}

/// What a forward took and was handed.
#[derive(Default)]
struct Forward {
    took: Vec<Block>,
    input: Option<Block>,
}

/// Carries out the tapes for units in this order, each by that of its like, and returns what happened.
fn replay(
    account: &mut Account,
    tapes: &[Tape],
    order: &[(Phase, usize)],
    alike: &[usize],
) -> Result<Vec<Event>, EngineError> {
    account.record();
    let mut forwards: Vec<Forward> = Vec::new();
    forwards.resize_with(alike.len(), Forward::default);
    let (mut handed, mut own): (Option<Block>, Vec<Block>) = (None, Vec::new());
    let mut now = None;
    for &(phase, unit) in order {
        if now != Some(phase) {
            account.enter(phase);
            now = Some(phase);
        }
        account.at_unit(Some(unit as u32));
        let tape = tapes
            .iter()
            .find(|t| t.phase == phase && t.unit == alike[unit])
            .expect("a tape for each phase of each kind of unit");
        own.clear();
        let block = |which, own: &[Block], forwards: &[Forward]| -> Block {
            let block = match which {
                Which::Own(i) => own.get(i).copied(),
                Which::Kept(i) => forwards[unit].took.get(i).copied(),
                Which::KeptInput => forwards[unit].input,
                Which::Input => handed,
            };
            block.expect("a tape gives back what there is")
        };
        for act in &tape.acts {
            match *act {
                Act::Take { bytes, category, operation } => {
                    account.operation(operation);
                    own.push(account.take(bytes, category).map_err(Into::into).in_unit(unit)?);
                }
                Act::GiveBack { which, operation } => {
                    account.operation(operation);
                    account.give_back(block(which, &own, &forwards));
                }
            }
        }
        let out = tape.out.map(|which| block(which, &own, &forwards));
        if phase == Phase::Forward {
            forwards[unit] = Forward { took: std::mem::take(&mut own), input: handed };
        }
        handed = out;
    }
    Ok(account.recorded())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdamWSettings, Decay, Keep, Precision, Schedule};
    use memwall_model::{Family, ModelConfig};
    use serde_json::json;

    /// Every family, mode and way to keep is composed: none falls back to running all units.
    #[test]
    fn tapes_can_say_what_every_unit_does() {
        for family in Family::ALL {
            let config = json!({
                "model_type": family.model_type(), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 5,
                "num_attention_heads": 2, "vocab_size": 31, "n_embd": 16, "n_layer": 5, "n_head": 2,
                "sliding_window": 8, "use_sliding_window": true, "max_window_layers": 2,
            });
            let spec = ModelSpec::new(ModelConfig::from_value(&config).unwrap());
            for (precision, gradients, deterministic, keep) in [
                (Precision::F32, Precision::F32, false, Keep::ALL),
                (Precision::F32, Precision::F32, true, Keep::INPUT),
                (Precision::Bf16, Precision::F32, false, Keep::INPUT),
                (Precision::Bf16, Precision::Bf16, false, Keep::ALL),
            ] {
                let settings = Settings {
                    micro_batch: 2,
                    micro_batches: 3,
                    sequence: 9,
                    precision,
                    gradients,
                    deterministic,
                    zero: crate::Zero::None,
                    clip: None,
                    seed: 0,
                    snapshot: 5000,
                    keep,
                    optimizer: AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-6, weight_decay: 0.1 },
                    schedule: Schedule {
                        peak: 1e-2,
                        last: 1e-2,
                        warmup: 0,
                        steps: 10,
                        decay: Decay::Constant,
                    },
                };
                let p = predict(&spec, &settings, Place::SINGLE, Description { threads: 2 }, 1 << 30, true)
                    .unwrap();
                assert!(p.is_some(), "{family:?} {settings:?}");
            }
        }
    }
}
