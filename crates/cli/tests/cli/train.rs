use crate::common::{Place, Run};
use crate::snapshot;

/// A model that is trained in a moment.
const NANO: &str = "\
steps = 4
batch_size = 2
save_every = 2
eval_split = { count = 3 }

[model]
vocab_size = 400
context = 256
width = 32
layers = 2
heads = 2
kv_heads = 1
ff = 48
";

fn place() -> Place {
    let place = Place::new();
    place.write("nano.toml", NANO);
    place
}

fn train(place: &Place, out: &str, args: &[&str]) -> Run {
    place.run(&[&["train", "--config", "@nano.toml", "--out", out], args].concat())
}

#[test]
fn the_built_in_stories_make_a_model_that_other_commands_take() {
    let place = place();
    let run = train(&place, "@run", &["--json"]).json()[0]["train"].clone();
    assert_eq!((&run["outcome"], &run["steps"]), (&"completed".into(), &4.into()));
    let loss = |when: &str| run["eval"][when]["loss"].as_f64().unwrap();
    assert!(loss("after") < loss("before"), "{run}");
    for model in ["@run/init.gguf", "@run/weights/latest"] {
        let verified = place.run(&["verify", model, "--json"]).json();
        assert_eq!(verified[0]["verify"]["ok"], true, "{}", verified[0]);
    }
    place.run(&["generate", "@run/weights/latest", "-p", "", "-n", "3"]).ok();
    place.run(&["inspect", "@run/weights/latest"]).ok();
    let again = train(&place, "@again", &["--threads", "3", "--json"]).json()[0]["train"].clone();
    assert_eq!(again["final_loss"], run["final_loss"]);
    let weights = |run: &str| std::fs::read(place.path(run).join("weights/step_4.gguf")).unwrap();
    assert_eq!(weights("run"), weights("again"));
}

#[test]
fn the_plan_of_a_new_model_says_what_it_will_be_and_leaves_nothing() {
    let place = place();
    let before = std::fs::read_dir(place.path("")).unwrap().count();
    let plan = train(&place, "@run", &["--dry-run", "--json"]).json()[0]["plan"].clone();
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), before);
    assert_eq!((&plan["model"]["family"], &plan["model"]["vocab_learned"]), (&"llama".into(), &true.into()));
    // More than a nat a word, and with so few tokens several of them a word.
    let floor = plan["floor"].as_f64().unwrap();
    assert!(floor > 0.2 && floor < 1.0, "{floor}");
    assert_eq!(plan["tokens"]["eval_examples"], 3);
    place.write("gelu.toml", format!("{NANO}activation = \"gelu\"\nqk_norm = true\n"));
    let text = place.run(&["train", "--config", "@gelu.toml", "--dry-run"]).ok();
    assert!(text.contains("planish, for planish alone"), "{text}");
    place.write("norm.toml", format!("{NANO}qk_norm = true\nrope_base = 50000.0\ntied = false\n"));
    let text = place.run(&["train", "--config", "@norm.toml", "--dry-run"]).ok();
    assert!(text.contains("qwen3, for llama.cpp"), "{text}");
}

#[test]
fn a_run_that_was_moved_goes_on() {
    let place = place();
    train(&place, "@whole", &["--steps", "6"]).ok();
    // The schedule of all six steps, but no further than four.
    train(&place, "@run", &["--steps", "6"]).ok();
    std::fs::rename(place.path("run"), place.path("moved")).unwrap();
    std::fs::remove_dir_all(place.path("moved/checkpoints/step_6")).unwrap();
    std::fs::remove_file(place.path("moved/weights/step_6.gguf")).unwrap();
    place.run(&["train", "--resume", "@moved"]).ok();
    let weights = |run: &str| std::fs::read(place.path(run).join("weights/step_6.gguf")).unwrap();
    assert_eq!(weights("moved"), weights("whole"));
}

#[test]
fn own_data_of_text_and_of_token_ids() {
    let place = place();
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(60);
    place.write("a.txt", &text);
    place.write("b.jsonl", format!("{{\"text\": {text:?}}}\n").repeat(4));
    let trained = train(&place, "@text", &["@a.txt", "@b.jsonl", "--pack", "--json"]);
    assert!(trained.json()[0]["train"]["eval"]["after"]["loss"].as_f64().unwrap() > 0.0);
    let ids: Vec<u8> = (0..2000u32).flat_map(|i| (i * i % 90).to_le_bytes()).collect();
    place.write("ids.bin", ids);
    train(&place, "@ids", &["@ids.bin", "--vocab-size", "90"]).ok();
    train(&place, "@more", &["@ids.bin", "--init-from", "@ids/weights/latest", "--steps", "1"]).ok();
    // The tokenizer of a model that is there.
    let out = train(&place, "@other", &["@a.txt", "--tokenizer", "@text/weights/latest"]);
    assert_eq!(out.code, Some(2), "{}", out.all());
    place.write("bare.toml", NANO.replace("vocab_size = 400\n", ""));
    let args = ["train", "@a.txt", "--config", "@bare.toml", "--out", "@other"];
    place.run(&[&args[..], &["--tokenizer", "@text/weights/latest"]].concat()).ok();
}

#[test]
fn a_donor_is_copied_or_looked_at_through_a_lens() {
    let place = place();
    train(&place, "@donor", &[]).ok();
    let donor = ["--donor", "@donor/weights/latest"];
    let plan = train(&place, "@x", &[&donor[..], &["--dry-run"]].concat()).ok();
    assert!(plan.contains("has 400 of these tokens (100.0 %)"), "{plan}");
    place.write("wide.toml", NANO.replace("width = 32", "width = 24"));
    let wide = ["train", "--config", "@wide.toml", "--out", "@wide"];
    let refused = place.run(&[&wide[..], &donor].concat());
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("--lens"), "{}", refused.stderr);
    assert!(!place.path("wide").exists());
    for lens in [&["--lens"][..], &["--lens", "pca"]] {
        let out = format!("@lens{}", lens.len());
        let args = ["train", "--config", "@wide.toml", "--out", &out];
        place.run(&[&args[..], &donor, lens].concat()).ok();
        let file = format!("{out}/weights/latest");
        place.run(&["verify", &file]).ok();
    }
}

#[test]
fn settings_that_make_no_model_are_refused() {
    let place = place();
    let mut refused = String::new();
    let mut refuse = |args: &[&str], more: &str| {
        place.write("bad.toml", format!("{NANO}{more}"));
        let run = place.run(&[&["train", "--config", "@bad.toml", "--out", "@run"], args].concat());
        assert!(matches!(run.code, Some(2 | 3)), "{}", run.all());
        assert!(!place.path("run").exists());
        refused += &format!("{args:?} {more:?}\n{}\n", run.stderr);
    };
    refuse(&[], "deep = 3\n");
    refuse(&[], "head_width = 5\n");
    refuse(&[], "activation = \"relu\"\n");
    refuse(&[], "lens = \"pca\"\n");
    refuse(&[], "norm_eps = 0.0\n");
    refuse(&["--vocab-size", "10"], "");
    refuse(&["--donor", "@bad.toml"], "");
    refuse(&["--tokenizer", "@missing.json"], "");
    refuse(&[], "tokenizer = \"missing.json\"\n");
    refuse(&["@missing.txt"], "");
    refuse(&["--context", "1"], "");
    refuse(&["--init-from", "@missing.gguf"], "");
    refuse(&["@bad.toml", "--init-from", "@missing.gguf"], "");
    snapshot!("train_refused", refused);
}
