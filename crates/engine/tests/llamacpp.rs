//! What planish writes, loaded by llama.cpp itself. Needs PLANISH_PYTHON, a Python with xllamacpp.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests fail by panicking, read the environment, run Python
#![allow(clippy::print_stderr)] // they say what they skip

mod common;

use std::path::Path;
use std::process::Command;

use common::{TestGguf, adapted, golden, logits, sequences};
use planish_base::TypeId;
use planish_engine::{AdapterFile, Binding, MergeType, Provenance, merge};

const BASE: &str = "tied_gqa";

/// Arguments: model, adapter or nothing, token ids. Prints [[id, log-probability], ..] after each prefix.
const PROBE: &str = r#"
import json, sys, xllamacpp as x
p = x.CommonParams()
p.model.path = sys.argv[1]
if sys.argv[2]:
    p.lora_adapters = [x.CommonAdapterLoraInfo(sys.argv[2], 1.0)]
p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
p.n_ctx = 64
p.n_parallel = 1
p.warmup = False
p.verbosity = 1
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
s = x.Server(p)
ids = json.loads(sys.argv[3])
out = []
for n in range(1, len(ids) + 1):
    a = s.handle_completions({"prompt": ids[:n], "n_predict": 1, "n_probs": 20, "temperature": 0.0,
                              "cache_prompt": False, "post_sampling_probs": False})
    if "error" in a:
        sys.exit(str(a["error"]))
    top = a["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    out.append([[t["id"], t["logprob"]] for t in top])
print("RESULT" + json.dumps(out))
"#;

type Top = Vec<Vec<(usize, f64)>>;

fn probe(python: &Path, model: &Path, adapter: Option<&Path>, ids: &[u32]) -> Top {
    let adapter = adapter.map_or(String::new(), |a| a.display().to_string());
    let ids = serde_json::to_string(ids).unwrap();
    let out = Command::new(python).args(["-c", PROBE]).arg(model).args([&adapter, &ids]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let result = text.lines().find_map(|l| l.strip_prefix("RESULT"));
    serde_json::from_str(result.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&out.stderr))))
        .unwrap()
}

/// The largest difference between llama.cpp's log-probabilities and those of our logits.
fn distance(got: &Top, logits: &[f32], vocab: usize) -> f64 {
    let mut worst = 0f64;
    assert_eq!(got.len() * vocab, logits.len());
    for (top, row) in got.iter().zip(logits.chunks(vocab)) {
        let max = row.iter().copied().fold(f32::MIN, f32::max);
        let sum = row.iter().map(|l| f64::from(l - max).exp()).sum::<f64>().ln();
        assert_eq!(top.len(), 20);
        worst = top.iter().map(|(id, l)| (f64::from(row[*id] - max) - sum - l).abs()).fold(worst, f64::max);
    }
    worst
}

#[test]
fn llama_cpp_gives_the_same_log_probabilities() {
    let Some(python) = planish_testkit::files::needed("PLANISH_PYTHON", "") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let model = TestGguf::golden(BASE).open(&path("base.gguf"));
    let peft = golden(BASE).join("peft");
    let adapter = AdapterFile::read(&peft, &model, Binding::Strict).unwrap();
    adapter.write_gguf(&model, &path("a.gguf"), &Provenance::default()).unwrap();
    let ids = &sequences(BASE)[0][..8];
    let (mut engine, set) = adapted(&path("base.gguf"), &peft);
    let want = logits(&mut engine, ids, &[&set]);
    let vocab = engine.model.spec.vocab;
    let with = probe(&python, &path("base.gguf"), Some(&path("a.gguf")), ids);
    let without = probe(&python, &path("base.gguf"), None, ids);
    assert!(distance(&with, &want, vocab) < 1e-3, "{:e}", distance(&with, &want, vocab));
    assert!(distance(&without, &want, vocab) > 0.1, "the adapter must matter");
    // llama.cpp rounds activations too where weights are not F32.
    for (ty, tolerance) in
        [(TypeId::F32, 1e-3), (TypeId::F16, 2e-2), (TypeId::BF16, 0.1), (TypeId::Q8_0, 0.3)]
    {
        merge(&model, &[(adapter.clone(), 1.0)], &path("m.gguf"), MergeType::As(ty)).unwrap();
        let mut merged = common::engine(planish_engine::Model::open(&path("m.gguf")).unwrap());
        let want = logits(&mut merged, ids, &[]);
        let worst = distance(&probe(&python, &path("m.gguf"), None, ids), &want, vocab);
        assert!(worst < tolerance, "{}: {worst:e}", ty.name());
    }
}

/// Queries and keys that are normed by head, in a family whose rows are not permuted.
#[test]
fn llama_cpp_computes_qwen3_as_we_do() {
    let Some(python) = planish_testkit::files::needed("PLANISH_PYTHON", "") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("qwen3.gguf");
    let mut engine = common::engine(TestGguf::golden("qwen3").open(&path));
    let ids = &sequences("qwen3")[0][..8];
    let want = logits(&mut engine, ids, &[]);
    let worst = distance(&probe(&python, &path, None, ids), &want, engine.model.spec.vocab);
    assert!(worst < 1e-3, "{worst:e}");
}

/// Adapters of every kind of which golden/lora has one: applied by llama.cpp where it can, else merged.
#[test]
fn llama_cpp_computes_the_same_with_adapters_of_every_kind() {
    let Some(python) = planish_testkit::files::needed("PLANISH_PYTHON", "") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for (case, base) in [
        ("layers", "tied_gqa"),
        ("pattern", "tied_gqa"),
        ("tables", "untied_mha"),
        ("embedding", "tied_gqa"),
        ("dora", "tied_gqa"),
    ] {
        let model = TestGguf::golden(base).open(&path("base.gguf"));
        let peft = golden("../lora").join(case);
        let adapter = AdapterFile::read(&peft, &model, Binding::Strict).unwrap();
        let ids = &sequences(base)[0][..6];
        let (mut engine, set) = adapted(&path("base.gguf"), &peft);
        let want = logits(&mut engine, ids, &[&set]);
        let vocab = engine.model.spec.vocab;
        let got = match adapter.gguf_obstacle(&model) {
            None => {
                adapter.write_gguf(&model, &path("a.gguf"), &Provenance::default()).unwrap();
                probe(&python, &path("base.gguf"), Some(&path("a.gguf")), ids)
            }
            Some(_) => {
                merge(&model, &[(adapter, 1.0)], &path("m.gguf"), MergeType::As(TypeId::F32)).unwrap();
                probe(&python, &path("m.gguf"), None, ids)
            }
        };
        assert!(distance(&got, &want, vocab) < 1e-3, "{case}: {:e}", distance(&got, &want, vocab));
    }
}

/// A file of toy has another order of rows and a tensor for each head; what is written of it is one of llama.cpp's.
#[test]
fn llama_cpp_loads_what_becomes_of_a_file_of_toy() {
    let Some(python) = planish_testkit::files::needed("PLANISH_PYTHON", "") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let ids = &sequences(BASE)[0][..8];
    for scattered in [false, true] {
        let model = TestGguf::golden(BASE).toy(8, scattered).open(&path("toy.gguf"));
        let mut engine = common::engine(model);
        let want = logits(&mut engine, ids, &[]);
        planish_engine::write_model(&engine, &path("out.gguf")).unwrap();
        let worst = distance(&probe(&python, &path("out.gguf"), None, ids), &want, engine.model.spec.vocab);
        assert!(worst < 1e-3, "{worst:e}");
    }
}
