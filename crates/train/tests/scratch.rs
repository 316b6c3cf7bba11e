//! New models: their first values, training against PyTorch, and what they leave behind.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a failed set-up is a failed test

use std::path::{Path, PathBuf};

use planish_base::CancelToken;
use planish_compute::{Backend, Isa};
use planish_engine::{Engine, EngineOptions, Model, Precision, score};
use planish_model::Trainable;
use planish_store::gguf::Gguf;
use planish_store::safetensors::SafeTensors;
use planish_text::{Dataset, LoadOptions, tales};
use planish_train::scratch::Lens;
use planish_train::{ModelConfig, Observer, RunConfig, Start, StepReport, tune};
use serde_json::Value;
use tempfile::TempDir;

/// Losses and gradient norms of a run.
#[derive(Default)]
struct Curve(Vec<(f64, f64)>);

impl Observer for Curve {
    fn step(&mut self, _: usize, _: usize, report: &StepReport) {
        self.0.push((report.loss, report.grad_norm));
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/scratch").join(name)
}

fn run(config: &RunConfig, out: &Path) -> Curve {
    let mut curve = Curve::default();
    let start = Start::New { out: out.to_path_buf(), run_id: "test".into() };
    tune(config, start, &CancelToken::new(), &mut curve).unwrap();
    curve
}

fn floats(gguf: &Gguf, name: &str) -> Vec<f32> {
    let info = gguf.tensors().iter().find(|t| t.name == name).unwrap();
    gguf.data(info).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn close(got: f64, want: f64, relative: f64) -> bool {
    (got - want).abs() <= relative * want.abs()
}

/// 50 steps of a model with biases and grouped heads, from the same first values, against PyTorch in double precision.
#[test]
fn fifty_steps_are_those_of_pytorch() {
    let dir = TempDir::new().unwrap();
    let text = std::fs::read_to_string(golden("run.toml")).unwrap();
    let mut config = RunConfig { full: true, ..toml::from_str(&text).unwrap() };
    config.data = vec![golden("data.jsonl")];
    let curve = run(&config, &dir.path().join("run"));
    let expected: Value = serde_json::from_slice(&std::fs::read(golden("expected.json")).unwrap()).unwrap();

    let first = Gguf::open(&dir.path().join("run/init.gguf")).unwrap();
    for (name, sums) in expected["first"].as_object().unwrap() {
        let values: Vec<f64> = floats(&first, name).into_iter().map(f64::from).collect();
        let squares: f64 = values.iter().map(|x| x * x).sum();
        assert!(close(squares, sums[1].as_f64().unwrap(), 1e-12), "first values of {name}");
    }
    let losses = expected["losses"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap());
    let norms = expected["grad_norms"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap());
    assert_eq!(curve.0.len(), 50);
    for (i, ((loss, norm), (want_loss, want_norm))) in curve.0.iter().zip(losses.zip(norms)).enumerate() {
        // Seen: 7e-7 and 2e-5.
        assert!(close(*loss, want_loss, 1e-5), "loss of step {i}: {loss}, want {want_loss}");
        assert!(close(*norm, want_norm, 1e-4), "norm of step {i}: {norm}, want {want_norm}");
    }
}

/// A model that knows nothing has the loss ln V, for any seed; no two of its rows are alike.
#[test]
fn a_new_model_knows_nothing() {
    let dir = TempDir::new().unwrap();
    for (preset, seed) in [("mini", 0), ("mini", u64::MAX), ("tiny", 0), ("tiny", 1), ("mid", 0)] {
        let out = dir.path().join(format!("{preset}-{seed}"));
        let config =
            RunConfig { seed, steps: Some(1), batch_size: 4, ..RunConfig::of_new_model(preset).unwrap() };
        let curve = run(&config, &out);
        let first = Gguf::open(&out.join("init.gguf")).unwrap();
        let model = Model::open(&out.join("init.gguf")).unwrap();
        let want = (model.spec.vocab as f64).ln();
        assert!(close(curve.0[0].0, want, 0.02), "{preset}, seed {seed}: {}, want {want}", curve.0[0].0);
        for name in ["token_embd.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight"] {
            let cols = first.tensors().iter().find(|t| t.name == name).unwrap().dims[0] as usize;
            let values = floats(&first, name);
            let mut rows: Vec<&[f32]> = values.chunks_exact(cols).collect();
            let n = rows.len();
            rows.sort_by(|a, b| a.partial_cmp(b).unwrap());
            rows.dedup();
            assert_eq!(rows.len(), n, "{name}");
        }
    }
}

fn small(config: &mut RunConfig) {
    let model = config.model.take().unwrap();
    let (width, layers) = (Some(48), Some(2));
    config.model = Some(ModelConfig { width, layers, ff: Some(96), vocab_size: Some(600), ..model });
    (config.steps, config.batch_size, config.micro_batch) = (Some(12), 4, 4);
}

fn engine(path: &Path, trainable: Trainable) -> Engine {
    let model = Model::open(path).unwrap();
    let context = model.spec.context;
    let options = EngineOptions {
        threads: 2,
        isa: Isa::detect(),
        context,
        tokens: context,
        trainable,
        recompute: false,
        precision: Precision::F32,
    };
    Engine::new(model, options).unwrap()
}

/// Log-probabilities of the tokens of some stories.
fn logprobs(engine: &mut Engine) -> Vec<f32> {
    let model = engine.model.clone();
    let stories = (0..5).map(|i| (String::new(), tales::story(9, i)));
    let options = LoadOptions { context: model.spec.context, ..LoadOptions::default() };
    let data = Dataset::of_texts(stories, model.tokenizer.as_ref().unwrap(), &options).unwrap();
    let scores = |e| score::example(engine, e, &[], 0).unwrap();
    data.examples.iter().flat_map(scores).map(|s| s.logprob).collect()
}

/// A donor's rows come by the text of their tokens, also into another order of them.
#[test]
fn a_donor_gives_its_rows() {
    let dir = TempDir::new().unwrap();
    let mut config = RunConfig::of_new_model("mini").unwrap();
    small(&mut config);
    run(&config, &dir.path().join("donor"));
    let donor = dir.path().join("donor/weights/step_12.gguf");
    let mut heir = RunConfig { seed: 7, steps: Some(1), ..config.clone() };
    let model = heir.model.as_mut().unwrap();
    (model.donor, model.vocab_size) = (Some(donor.clone()), Some(500));
    run(&heir, &dir.path().join("heir"));
    let (from, to) = (Model::open(&donor).unwrap(), Model::open(&dir.path().join("heir/init.gguf")).unwrap());
    let rows = |m: &Model| floats(m.gguf.as_ref().unwrap(), "token_embd.weight");
    let (old, new, width) = (rows(&from), rows(&to), from.spec.width);
    let (old_words, new_words) = (from.tokenizer.as_ref().unwrap(), to.tokenizer.as_ref().unwrap());
    let mut moved = 0;
    for id in 0..to.spec.vocab {
        let text = new_words.token_text(id as u32).unwrap();
        let same = (0..from.spec.vocab).find(|i| old_words.token_text(*i as u32) == Some(text));
        let row = &new[id * width..(id + 1) * width];
        match same {
            Some(i) => assert_eq!(row, &old[i * width..(i + 1) * width], "{text}"),
            None => assert!(!old.chunks_exact(width).any(|r| r == row), "{text}"),
        }
        moved += usize::from(same.is_some_and(|i| i != id));
    }
    assert!(moved > 100, "{moved} rows are at another place");
}

/// What a lens shows of its table is an ordinary embedding in every file: the file scores as the run did.
#[test]
fn a_lens_is_folded_into_the_embedding() {
    let dir = TempDir::new().unwrap();
    let mut config = RunConfig::of_new_model("mini").unwrap();
    small(&mut config);
    run(&config, &dir.path().join("donor"));
    for lens in [Lens::Random, Lens::Pca] {
        let mut config = RunConfig { seed: 3, ..config.clone() };
        let model = config.model.as_mut().unwrap();
        model.donor = Some(dir.path().join("donor/weights/step_12.gguf"));
        (model.lens, model.width, model.vocab_size, model.heads) = (Some(lens), Some(32), None, Some(4));
        let out = dir.path().join(format!("{lens:?}"));
        run(&config, &out);
        let file = Gguf::open(&out.join("weights/step_12.gguf")).unwrap();
        assert!(file.tensors().iter().all(|t| !t.name.starts_with("lens.")));
        assert_eq!(file.tensors()[0].dims, [32, 600]);
        // The state of the run, as it trained: the donor's table, and the lens in front of the blocks.
        let mut training = engine(&out.join("init.gguf"), Trainable::Everything);
        let state = SafeTensors::open(&out.join("checkpoints/step_12/weights.safetensors")).unwrap();
        for n in training.params.trainable().cloned().collect::<Vec<_>>() {
            training.backend.upload(&n.param.view, state.get(&n.name).unwrap().data);
        }
        assert!(state.get("lens.proj.weight").is_some() && state.get("token_embd.weight").is_none());
        let got = logprobs(&mut engine(&out.join("weights/step_12.gguf"), Trainable::Nothing));
        let want = logprobs(&mut training);
        let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(got.len() > 300 && worst < 1e-5, "{lens:?}: log-probabilities differ by {worst:e}");
    }
}
