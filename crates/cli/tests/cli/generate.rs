use crate::common::{Place, Tiny};
use crate::snapshot;

#[test]
fn text_and_json_are_the_same_and_repeatable() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    let base = ["generate", "@tiny.gguf", "--prompt-ids", "1,2,3", "-n", "12", "--ignore-eos"];
    let run = |more: &[&str]| place.run(&[&base[..], more].concat());
    snapshot!("generate_ids", run(&["--json"]).all());
    let greedy = &run(&["--json"]).json()[0];
    assert_eq!(greedy["ids"].as_array().unwrap().len(), 12);
    assert_eq!((&greedy["reason"], &greedy["prompt_tokens"]), (&"length".into(), &3.into()));
    let text = run(&["--temp", "0"]).ok();
    assert_eq!(text.strip_suffix('\n'), greedy["text"].as_str());
    let sampled = |seed: &str, threads: &str| {
        let all = ["--json", "--temp", "1", "--seed", seed, "--threads", threads];
        run(&all).json()[0]["ids"].clone()
    };
    assert_eq!(sampled("1", "1"), sampled("1", "3"));
    assert_ne!(sampled("1", "1"), sampled("2", "1"));
}

#[test]
fn the_prompt_comes_from_a_flag_or_from_stdin() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    let ids = |args: &[&str], stdin: &str| {
        let run = place.run_with(&[&["generate", "@tiny.gguf", "--json", "-n", "4"], args].concat(), stdin);
        run.json()[0].clone()
    };
    let (flag, stdin) = (ids(&["-p", "hi there"], ""), ids(&["-p", "-"], "hi there\n"));
    assert_eq!((&flag["ids"], &flag["prompt_tokens"]), (&stdin["ids"], &stdin["prompt_tokens"]));
    // `<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n`, a token a letter but for `ta`.
    assert_eq!(ids(&["-p", "hi", "--chat"], "")["prompt_tokens"], 1 + 5 + 2 + 1 + 1 + 1 + 9);
    let system = ids(&["-p", "hi", "--chat", "--system", "ba"], "");
    assert_eq!(system["prompt_tokens"], 20 + 1 + 7 + 1 + 1 + 1);
}

#[test]
fn without_a_tokenizer_ids_are_printed() {
    let place = Place::new();
    place.tiny(&Tiny { tokenizer: false, ..Tiny::default() });
    let args = ["generate", "@tiny.gguf", "--prompt-ids", "1,2,3", "-n", "3"];
    let text = place.run(&args).ok();
    let json = &place.run(&[&args[..], &["--json"]].concat()).json()[0];
    assert_eq!(format!("[{}]", text.trim()), json["ids"].to_string());
    assert!(json["text"].is_null());
}

#[test]
fn stop_texts_and_the_context_end_a_generation() {
    let place = Place::new();
    place.tiny(&Tiny { context: 16, ..Tiny::default() });
    let args = ["generate", "@tiny.gguf", "--json", "--prompt-ids", "1,2,3", "-n", "99", "--ignore-eos"];
    let full = place.run(&args).json()[0].clone();
    // 13 tokens fill the context, and one more needs no room.
    assert_eq!((&full["reason"], full["ids"].as_array().unwrap().len()), (&"context".into(), 14));
    let text = full["text"].as_str().unwrap().to_owned();
    let second = text.chars().nth(1).unwrap().to_string();
    let cut = place.run(&[&args[..], &["--stop", &second]].concat()).json()[0].clone();
    assert_eq!(cut["reason"], "stop");
    assert_eq!(cut["text"].as_str(), text.split(&second).next());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new();
    let model = place.tiny(&Tiny { context: 4096, ..Tiny::default() });
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_planish"))
        .args(["generate", "--prompt-ids", "1", "-n", "4000", "--context", "4096", "--ignore-eos"])
        .arg(model)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
