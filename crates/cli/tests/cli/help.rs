use crate::common::Place;
use crate::snapshot;

#[test]
fn help_of_every_command_is_complete() {
    let place = Place::new();
    snapshot!("help", place.run(&["--help"]).all());
    for command in ["tune", "train", "generate", "chat", "eval", "inspect", "merge", "verify", "bench"] {
        snapshot!(format!("help_{command}"), place.run(&[command, "--help"]).all());
    }
}

#[test]
fn wrong_flags_are_usage_errors() {
    let place = Place::new();
    for args in [&["--json", "generate"][..], &["generate", "@m", "--json", "--nonsense", "-p", "x"]] {
        let run = place.run(args);
        assert_eq!(run.code, Some(2));
        let error: serde_json::Value = serde_json::from_str(&run.stderr).unwrap();
        assert_eq!(error["error"]["kind"], "usage");
    }
    assert_eq!(place.run(&[]).code, Some(2));
    assert_eq!(place.run(&["generate", "@m", "-p", "x", "--prompt-ids", "1"]).code, Some(2));
    assert_eq!(place.run(&["generate", "@m", "-p", "x", "--system", "y"]).code, Some(2));
    assert_eq!(place.run(&["generate", "@m", "-p", "x", "--stop", ""]).code, Some(2));
    assert_eq!(place.run(&["eval", "@m", "@d", "--max-length-policy", "nonsense"]).code, Some(2));
    assert!(place.run(&["--version"]).ok().starts_with("planish "));
}
