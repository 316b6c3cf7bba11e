//! Where a training pass first computes something that is not finite, for numbers spoilt at known places.
#![allow(clippy::unwrap_used)] // a failed set-up is a failed test

mod common;
#[path = "common/random.rs"]
mod random;

use common::TestGguf;
use planish_base::TypeId;
use planish_compute::{Backend, Isa, Stage, View};
use planish_engine::{Engine, EngineOptions, NonFinite, Precision};
use planish_model::{AdapterSet, AdapterSpec, LinearId, ROLES, Ragged, Role, Trainable};
use planish_tape::Param;

const NORMALISER: f32 = 0.1;

struct Trained {
    engine: Engine,
    set: AdapterSet,
}

impl Trained {
    fn new(trainable: Trainable) -> Trained {
        let isa = Isa::detect();
        let options = EngineOptions {
            threads: 2,
            isa,
            context: 64,
            tokens: 64,
            trainable,
            recompute: false,
            precision: Precision::F32,
        };
        Trained {
            engine: Engine::new(random::llama(4, 64, TypeId::F32), options).unwrap(),
            set: AdapterSet::default(),
        }
    }

    fn lora() -> Trained {
        let mut t = Trained::new(Trainable::Nothing);
        let spec = AdapterSpec {
            rank: 4,
            alpha: 8.0,
            rslora: false,
            targets: ROLES.to_vec(),
            dropout: 0.0,
            ..AdapterSpec::default()
        };
        t.set = AdapterSet::init(&mut t.engine.backend, &t.engine.model.spec, &t.engine.params, &spec, 5)
            .unwrap();
        t
    }

    fn pair(&self, layer: usize, role: Role) -> (Param, Param) {
        let pair = self.set.of(LinearId { layer, role }).unwrap();
        (pair.a, pair.b)
    }

    fn named(&self, name: &str) -> Param {
        self.engine.params.named.iter().find(|n| n.name == name).unwrap().param
    }

    /// Sets one element of a tensor.
    fn spoil(&mut self, v: &View, row: usize, value: f32) {
        let mut values = self.engine.backend.download_f32(v);
        values[row * v.cols + v.cols / 2] = value;
        self.engine.backend.upload_f32(v, &values);
    }

    fn find(&mut self, normaliser: f32) -> Option<NonFinite> {
        let ids: Vec<u32> = (0..12).map(|i| 3 * i).collect();
        let positions: Vec<u32> = (0..12).collect();
        let batch = Ragged {
            ids: &ids,
            positions: &positions,
            segments: &[[0, 12, 0, 0]],
            rows: &positions,
            targets: &ids,
        };
        self.engine.first_nonfinite(&batch, &[&self.set], normaliser).unwrap()
    }
}

fn place(bad: &NonFinite) -> (&str, Option<usize>, Stage, Option<&str>) {
    (bad.op, bad.layer, bad.pass, bad.input.as_deref())
}

#[test]
fn finite_passes_have_none() {
    assert_eq!(Trained::lora().find(NORMALISER), None);
    assert_eq!(Trained::new(Trainable::Everything).find(NORMALISER), None);
}

#[test]
fn an_adapter_that_is_not_a_number() {
    for recompute in [false, true] {
        let mut t = Trained::lora();
        t.engine.set_recompute(recompute);
        let (a, _) = t.pair(2, Role::Gate);
        t.spoil(&a.view, 1, f32::NAN);
        let bad = t.find(NORMALISER).unwrap();
        let input = Some("blk.2.ffn_gate.weight.lora_a");
        assert_eq!(place(&bad), ("MatMul", Some(2), Stage::Forward, input));
        assert_eq!((bad.rows, bad.cols, bad.row), (12, 4, 0));
        let want = "mat mul of layer 2, forward, 12 x 4, first in row 0, \
            from blk.2.ffn_gate.weight.lora_a, which was not finite before the pass";
        assert_eq!(bad.to_string(), want);
    }
}

/// Token 15 stands in row 5.
#[test]
fn an_embedding_that_is_not_a_number() {
    let mut t = Trained::new(Trainable::Everything);
    let table = t.named("token_embd.weight");
    t.spoil(&table.view, 15, f32::NAN);
    let bad = t.find(NORMALISER).unwrap();
    assert_eq!(place(&bad), ("Embed", None, Stage::Forward, Some("token_embd.weight")));
    assert_eq!((bad.rows, bad.cols, bad.row), (12, 64, 5));
}

#[test]
fn a_weight_that_is_infinite() {
    let mut t = Trained::new(Trainable::Everything);
    let weight = t.named("blk.1.ffn_norm.weight");
    t.spoil(&weight.view, 0, f32::INFINITY);
    let bad = t.find(NORMALISER).unwrap();
    assert_eq!(place(&bad), ("RmsNorm", Some(1), Stage::Forward, Some("blk.1.ffn_norm.weight")));
}

/// The half-precision scale of a block of a frozen tensor in the file.
#[test]
fn a_quantised_weight_that_is_not_a_number() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = TestGguf::golden("tied_gqa").quantised(TypeId::Q8_0);
    let tensor = file.tensor("blk.1.attn_output.weight");
    assert_eq!(tensor.2, TypeId::Q8_0);
    tensor.3[..2].copy_from_slice(&0x7e00u16.to_le_bytes());
    let engine = common::engine(file.open(&dir.path().join("model.gguf")));
    let mut t = Trained { engine, set: AdapterSet::default() };
    let bad = t.find(NORMALISER).unwrap();
    assert_eq!(place(&bad), ("MatMul", Some(1), Stage::Forward, Some("blk.1.attn_output.weight")));
}

/// 1e30 * 1e30 is beyond single precision, each factor is not.
#[test]
fn an_activation_that_overflows() {
    let mut t = Trained::lora();
    let (a, b) = t.pair(3, Role::Down);
    t.spoil(&a.view, 0, 1e30);
    t.engine.backend.upload_f32(&b.view, &vec![1e30; b.view.elements()]);
    let bad = t.find(NORMALISER).unwrap();
    assert_eq!(place(&bad), ("MatMul", Some(3), Stage::Forward, None));
    assert_eq!((bad.rows, bad.cols), (12, 64));
}

/// Losses do not depend on the normaliser, gradients are proportional to it.
#[test]
fn gradients_that_overflow() {
    for recompute in [false, true] {
        let mut t = Trained::lora();
        t.engine.set_recompute(recompute);
        let bad = t.find(f32::MAX).unwrap();
        assert_eq!((bad.pass, bad.input.as_deref()), (Stage::Backward, None));
        let bad = t.find(f32::INFINITY).unwrap();
        assert_eq!(place(&bad), ("CrossEntropy", None, Stage::Backward, Some("the normaliser")));
        assert_eq!((bad.rows, bad.cols), (12, 512));
    }
}

#[test]
fn a_gradient_that_was_not_a_number_before() {
    let mut t = Trained::lora();
    let (_, b) = t.pair(3, Role::K);
    t.spoil(&b.grad.unwrap(), 9, f32::NAN);
    let bad = t.find(NORMALISER).unwrap();
    let input = Some("the gradient of blk.3.attn_k.weight.lora_b");
    assert_eq!(place(&bad), ("MatMul", Some(3), Stage::Backward, input));
    assert_eq!(bad.row, 9);
}
