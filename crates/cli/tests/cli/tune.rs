use crate::common::{Place, Tiny, planish};

const DATA: &str =
    "{\"prompt\": \"hi\", \"completion\": \"ba be ca\"}\n{\"prompt\": \"ho\", \"completion\": \"da de\"}\n";

fn place() -> Place {
    let place = Place::new();
    place.tiny(&Tiny::default());
    place.write("data.jsonl", DATA.repeat(4));
    place
}

#[test]
fn a_run_lowers_the_loss_and_its_adapter_works_everywhere() {
    let place = place();
    let args =
        ["tune", "@tiny.gguf", "@data.jsonl", "--steps", "10", "--lr", "0.02", "--out", "@run", "--json"];
    let run = place.run(&args).json()[0]["tune"].clone();
    assert_eq!((&run["outcome"], &run["steps"]), (&"completed".into(), &10.into()));
    let loss = |when: &str| run["eval"][when]["loss"].as_f64().unwrap();
    assert!(loss("after") < loss("before"), "{run}");
    let latest = run["adapter"].as_str().unwrap().replace("[DIR]", &place.path("").display().to_string());
    let eval = |model: &str, adapter: &[&str]| {
        let line =
            place.run(&[&["eval", model, "@data.jsonl", "--json"], adapter].concat()).json()[0].clone();
        line["summary"]["loss"].as_f64().unwrap()
    };
    let (base, adapted) = (eval("@tiny.gguf", &[]), eval("@tiny.gguf", &["--adapter", &latest]));
    assert!(adapted < base);
    assert!((eval("@tiny.gguf", &["--adapter", &format!("{latest}:0")]) - base).abs() < 1e-6);
    let peft = place.path("run/peft").display().to_string();
    assert!((eval("@tiny.gguf", &["--adapter", &peft]) - adapted).abs() < 1e-5);
    let merge = ["merge", "@tiny.gguf", &latest, "@merged.gguf", "--eval-data", "@data.jsonl", "--json"];
    let merged = place.run(&merge).json()[0]["merge"].clone();
    assert!((merged["loss"]["adapted"].as_f64().unwrap() - adapted).abs() < 1e-6, "{merged}");
    assert!((eval("@merged.gguf", &[]) - adapted).abs() < 1e-4);
    let verified = place.run(&["verify", &latest, "--base", "@tiny.gguf", "--json"]).json();
    assert_eq!(verified[0]["verify"]["ok"], true, "{}", verified[0]);
    assert_eq!(place.run(&["verify", &latest, "--base", "@merged.gguf"]).code, Some(1));
    place.run(&["verify", "@merged.gguf"]).ok();
    // The merged file is another base.
    let run = place.run(&["generate", "@merged.gguf", "-p", "hi", "--adapter", &latest]);
    assert_eq!(run.code, Some(3));
    assert!(run.stderr.contains("--any-base"), "{}", run.stderr);
    let loose = ["generate", "@merged.gguf", "-p", "hi", "-n", "1", "--adapter", &latest, "--any-base"];
    place.run(&loose).ok();
    // A second run into the same directory is refused.
    assert_eq!(place.run(&args).code, Some(2));
}

#[test]
fn a_dry_run_prints_the_plan_and_writes_nothing() {
    let place = place();
    let args = ["tune", "@tiny.gguf", "@data.jsonl", "--out", "@run", "--steps", "3", "--dry-run"];
    let plan = place.run(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(plan.len(), 1);
    assert!(plan[0]["plan"]["memory"]["total_bytes"].as_u64() > Some(0));
    assert_eq!(plan[0]["plan"]["tokens"]["train_examples"], 7);
    assert!(place.run(&args).ok().contains("steps         3: "));
    assert!(!place.path("run").exists());
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let place = place();
    let data = place.path("data.jsonl").display().to_string();
    let model = place.path("tiny.gguf").display().to_string();
    place.write("c.toml", format!("base = {model:?}\ndata = [{data:?}]\nsteps = 3\nbatch_size = 2\n"));
    let plan = |args: &[&str]| {
        let all = [&["tune", "--config", "@c.toml", "--dry-run", "--json"], args].concat();
        place.run(&all).json()[0]["plan"].clone()
    };
    assert_eq!(plan(&[])["steps"], 3);
    assert_eq!(plan(&["--steps", "5"])["steps"], 5);
    // Seven examples in batches of two.
    assert_eq!(plan(&["--epochs", "2"])["steps"], 7);
    place.write("c.toml", "rank = 4\nsteeps = 3\n");
    let run = place.run(&["tune", "--config", "@c.toml", "--dry-run"]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("c.toml:2: unknown field `steeps`"), "{}", run.stderr);
}

#[test]
fn programs_that_start_runs_name_them_by_the_environment() {
    let place = place();
    let mut command = planish();
    command.env("TAO_RUN_DIR", place.path("here")).env("TOY_RUN_ID", "seven");
    command.arg("tune").args([place.path("tiny.gguf"), place.path("data.jsonl")]).args(["--steps", "1"]);
    let output = command.output().unwrap();
    assert!(output.status.success());
    assert!(output.stdout.starts_with(b"step 1: loss="));
    let events = std::fs::read_to_string(place.path("here/events.jsonl")).unwrap();
    assert!(events.lines().next().unwrap().contains("\"run_id\":\"seven\""));
}

#[test]
fn a_run_that_diverges_says_so() {
    let place = place();
    let args =
        ["tune", "@tiny.gguf", "@data.jsonl", "--steps", "9", "--lr", "1e30", "--clip", "0", "--out", "@run"];
    let run = place.run(&[&args[..], &["--schedule", "constant", "--json"]].concat());
    assert_eq!((run.code, run.stdout.as_str()), (Some(5), ""), "{}", run.all());
    let error: serde_json::Value = serde_json::from_str(&run.stderr).unwrap();
    assert_eq!(error["error"]["kind"], "diverged");
}

#[test]
fn the_newest_run_goes_on_without_its_name() {
    let place = place();
    let here = |args: &[&str]| {
        let output = planish().current_dir(place.path("")).args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, stderr) = here(&["tune", "--resume"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("runs: there is no run to go on with"), "{stderr}");
    for id in ["one", "two"] {
        let begun = ["tune", "tiny.gguf", "data.jsonl", "--steps", "2", "--save-every", "1", "--run-id", id];
        assert_eq!(here(&begun).0, Some(0));
    }
    // The second run loses its last checkpoint, and its last weights.
    std::fs::remove_dir_all(place.path("runs/two/checkpoints/step_2")).unwrap();
    std::fs::remove_file(place.path("runs/two/weights/step_2.gguf")).unwrap();
    let (code, stderr) = here(&["tune", "--resume"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("step 2: ") && !stderr.contains("step 1: "), "{stderr}");
    assert!(place.path("runs/two/weights/step_2.gguf").exists());
    let (code, stderr) = here(&["tune", "--resume", "runs/one", "--rank", "3"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("rank was 16, is 3"), "{stderr}");
}

#[test]
fn names_of_runs_cannot_lead_elsewhere() {
    let place = place();
    for id in ["../x", "..", "/tmp/x", "a/b", "", " ", "a\nb", "-x", &"x".repeat(101)] {
        let flag = format!("--run-id={id}");
        let run = place.run(&["tune", "@tiny.gguf", "@data.jsonl", "--steps", "1", "--dry-run", &flag]);
        assert_eq!(run.code, Some(2), "{id:?}: {}", run.stderr);
    }
}

#[test]
fn data_come_through_a_pipe_and_the_run_keeps_them() {
    let place = place();
    let steps = ["--steps", "2", "--lr", "0.02", "--eval-split", "1"];
    let run = |data: &str, out: &str, stdin: &str| {
        let args = ["tune", "@tiny.gguf", data, "--out", out, "--json"];
        place.run_with(&[&args[..], &steps].concat(), stdin).json()[0]["tune"]["final_loss"].clone()
    };
    let lines = DATA.repeat(4);
    assert_eq!(run("@data.jsonl", "@file", ""), run("-", "@pipe", &lines));
    assert_eq!(std::fs::read_to_string(place.path("pipe/stdin.jsonl")).unwrap(), lines);
    // Nobody sends anything any more; the run has its own copy.
    place.run(&["tune", "--resume", "@pipe", "--steps", "2"]).ok();
    place.write("text.txt", "ba be ca da de\n");
    let text = |data: &str, stdin: &str| {
        let args = ["eval", "@tiny.gguf", data, "--json"];
        place.run_with(&args, stdin).json()[0]["summary"]["loss"].clone()
    };
    assert_eq!(text("@text.txt", ""), text("-", "ba be ca da de\n"));
    for (args, stdin, message) in [
        (&["-", "-"][..], "x", "given twice"),
        (&["-", "--eval-data", "-"], "x", "given twice"),
        (&["-"], "", "stdin: "),
        (&["-"], "{\"text\": 7}", "stdin:1: "),
    ] {
        let failed = place.run_with(&[&["tune", "@tiny.gguf", "--dry-run"], args].concat(), stdin);
        assert!(failed.stderr.contains(message), "{args:?}: {}", failed.stderr);
        assert!([Some(2), Some(3)].contains(&failed.code), "{args:?}: {}", failed.stderr);
    }
}

#[test]
fn the_plan_says_how_full_the_packs_are() {
    let place = place();
    let pack = ["tune", "@tiny.gguf", "@data.jsonl", "--pack", "--context", "32", "--dry-run"];
    let plan = place.run(&[&pack[..], &["--json"]].concat()).json()[0]["plan"]["tokens"]["packed"].clone();
    let (packs, fill) = (plan["packs"].as_u64().unwrap(), plan["fill"].as_f64().unwrap());
    assert!(packs < 7 && fill > 0.5 && fill <= 1.0, "{plan}");
    let text = place.run(&pack).ok();
    let row = format!("packed        {packs} packs of up to 32 tokens, {:.1} % full", 100.0 * fill);
    assert!(text.contains(&row), "{text}");
}

/// Called in a directory whose own name looks like a pattern, and gone on with from another one.
#[test]
fn a_pattern_means_the_same_from_anywhere() {
    let place = place();
    let odd = place.path("odd [x]");
    std::fs::create_dir(&odd).unwrap();
    for name in ["part-1.jsonl", "part-2.jsonl"] {
        std::fs::write(odd.join(name), DATA).unwrap();
    }
    let model = place.path("tiny.gguf").display().to_string();
    let args =
        ["tune", &model, "part-*.jsonl", "--steps", "2", "--out", "run", "--eval-split", "0", "--cache", "c"];
    planish().current_dir(&odd).args(args).assert().success();
    assert_eq!(std::fs::read_dir(odd.join("c")).unwrap().count(), 1, "two files of one content");
    place.run(&["tune", "--resume", "@odd [x]/run"]).ok();
    // One more file makes it another run.
    std::fs::write(odd.join("part-3.jsonl"), DATA).unwrap();
    let refused = place.run(&["tune", "--resume", "@odd [x]/run"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("data was"), "{}", refused.stderr);
}
