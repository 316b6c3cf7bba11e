use serde_json::Value;

use crate::common::{Place, Tiny};

/// The objects under a name.
fn named<'a>(lines: &'a [Value], name: &str) -> Vec<&'a Value> {
    lines.iter().filter_map(|l| l.get(name)).collect()
}

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("{v} is not a number"))
}

/// The matrices of the tiny model: two blocks of width 32 with keys and values of width 16, 64 wide inside; 300 tokens.
const BLOCKS: u64 = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64);
const HEAD: u64 = 32 * 300;

#[test]
fn a_model_is_measured_part_by_part() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    let args = "bench @tiny.gguf --json --only load,prefill,decode,train,full --context 16 --tokens 4 --batch 2 --rank 4 \
                --targets q,v --repeats 2 --threads 1";
    let lines = place.run(&args.split_whitespace().collect::<Vec<_>>()).json();
    let one = |name: &str| {
        let all = named(&lines, name);
        assert_eq!(all.len(), 1, "{name}");
        all[0].clone()
    };
    assert!(number(&one("first_token")["first_seconds"]) > 0.0);
    let prefill = one("prefill");
    assert_eq!(prefill["tokens"], 16);
    assert_eq!(prefill["multiplications"], 16 * BLOCKS + HEAD);
    assert!(prefill["share_of_peak"].is_null());
    let decode = one("decode");
    assert_eq!((&decode["tokens"], &decode["after"]), (&4.into(), &16.into()));
    // F32: every matrix and the five norms; the embedding is the head.
    assert_eq!(decode["weight_bytes"], 4 * (BLOCKS + HEAD + 5 * 32));
    let train = named(&lines, "train");
    assert_eq!(train.len(), 2);
    assert_eq!((&train[0]["trained"], &train[1]["trained"]), (&"adapter".into(), &"everything".into()));
    assert_eq!((&train[0]["rank"], &train[0]["targets"]), (&4.into(), &"q,v".into()));
    assert_eq!((&train[0]["sequences"], &train[0]["context"]), (&2.into(), &16.into()));
    // Forward, input gradients and weight gradients of 32 tokens; nothing needs the gradient of the embedding's ids, and
    // the head sees the 30 rows that predict.
    assert_eq!(train[1]["multiplications"], 3 * (32 * BLOCKS + 30 * HEAD));
    for speed in [&prefill, &decode, train[0], train[1]].map(|l| &l["tokens_per_second"]) {
        let [min, median, max] = ["min", "median", "max"].map(|k| number(&speed[k]));
        assert!(0.0 < min && min <= median && median <= max, "{speed}");
    }
    assert!(number(&one("memory")["peak_bytes"]) > 1e6);
}

#[test]
fn operations_add_up() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    let args = ["bench", "@tiny.gguf", "--only", "train", "--context", "16", "--repeats", "1", "--ops"];
    let lines = place.run(&[&args[..], &["--json"]].concat()).json();
    let ops = named(&lines, "op");
    let sum: f64 = ops.iter().map(|o| number(&o["share"])).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    let parts: std::collections::BTreeSet<_> = ops.iter().map(|o| o["part"].as_str().unwrap()).collect();
    let all = ["backward", "forward", "recomputed", "update"];
    assert_eq!(parts.into_iter().collect::<Vec<_>>(), all);
    assert!(ops.iter().any(|o| o["gflops"].is_number()) && ops.iter().any(|o| o["op"] == "Attend"));
    let text = place.run(&args).ok();
    assert!(text.starts_with("train   ") && text.contains("% in matrix products"), "{text}");
}

#[test]
fn the_machine_is_what_the_rest_is_compared_with() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    let args = ["bench", "@tiny.gguf", "--only", "limits,prefill,decode", "--repeats", "1", "--threads", "1"];
    let lines = place.run(&[&args[..], &["--json"]].concat()).json();
    let limits = named(&lines, "limits")[0];
    assert_eq!(limits["threads"], 1);
    let (prefill, decode) = (named(&lines, "prefill")[0], named(&lines, "decode")[0]);
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
    close(
        number(&prefill["share_of_peak"]),
        number(&prefill["gflops"]) / number(&limits["peak_gflops"]["median"]),
    );
    close(
        number(&decode["share_of_read"]),
        number(&decode["gb_per_second"]) / number(&limits["read_gb_per_second"]["median"]),
    );
    // The tiny model's context of 256 holds the prompt and the 64 tokens after it.
    assert_eq!((&prefill["tokens"], &decode["after"]), (&192.into(), &192.into()));
    let text = place.run(&args).ok();
    let names: Vec<&str> = text.lines().map(|l| l.split_whitespace().next().unwrap()).collect();
    assert_eq!(names, ["machine", "prefill", "decode", "memory"]);
}

#[test]
fn products_are_of_the_precision_that_is_asked_for() {
    let place = Place::new();
    let args = "bench --json --only matrix --precision bf16 --repeats 1";
    let lines = place.run(&args.split_whitespace().collect::<Vec<_>>()).json();
    let products = named(&lines, "matrix");
    // Five shapes in three orders.
    assert_eq!(products.len(), 15);
    assert!(products.iter().all(|p| p["precision"] == "bf16" && number(&p["gflops"]["median"]) > 0.0));
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    let code = |args: &[&str]| place.run(&[&["bench"], args].concat()).code;
    assert_eq!(code(&["--only", "train"]), Some(2));
    assert_eq!(code(&["--full"]), Some(2));
    assert_eq!(code(&["--ops"]), Some(2));
    assert_eq!(code(&["@tiny.gguf", "--only", "full", "--full"]), Some(2));
    assert_eq!(code(&["@tiny.gguf", "--only", "nonsense"]), Some(2));
    assert_eq!(code(&["@tiny.gguf", "--only", "decode", "--ops"]), Some(2));
    for (flag, value) in [("--repeats", "0"), ("--threads", "0"), ("--context", "257"), ("--tokens", "256")] {
        assert_eq!(code(&["@tiny.gguf", "--only", "decode", flag, value]), Some(2), "{flag}");
    }
    for (flag, value) in [("--batch", "0"), ("--rank", "0"), ("--targets", "x"), ("--context", "257")] {
        assert_eq!(code(&["@tiny.gguf", "--only", "train", flag, value]), Some(2), "{flag}");
    }
    assert_eq!(code(&["@absent.gguf", "--only", "load"]), Some(3));
    // A million million tokens are refused before anything is taken.
    let long = Tiny { context: 1_000_000, ..Tiny::default() };
    place.tiny(&long);
    let args =
        ["bench", "@tiny.gguf", "--only", "full", "--batch", "1000000", "--context", "1000000", "--json"];
    let much = place.run(&args);
    let error: Value = serde_json::from_str(&much.stderr).unwrap();
    assert_eq!((much.code, &error["error"]["code"]), (Some(4), &"memory".into()));
}
