#![cfg(unix)]

use std::io::Read;
use std::process::{Child, Command, Stdio};

use crate::common::{Place, Tiny};

fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

fn start(place: &Place, args: &[&str]) -> Child {
    let model = place.tiny(&Tiny { context: 1 << 20, ..Tiny::default() });
    let mut command = Command::new(env!("CARGO_BIN_EXE_planish"));
    command.arg(args[0]).arg(model).args(&args[1..]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_generation_stops_and_keeps_its_text() {
    let place = Place::new();
    let args = ["generate", "--prompt-ids", "1", "-n", "1000000", "--context", "200000", "--ignore-eos"];
    let mut child = start(&place, &args);
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 8]).unwrap();
    interrupt(&child);
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.last(), Some(&b'\n'));
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_chat_that_waits_for_a_line_ends() {
    let place = Place::new();
    let mut child = start(&place, &["chat", "-n", "2"]);
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"hi\n").unwrap();
    // The answer's line break: now it waits.
    let mut stdout = child.stdout.take().unwrap();
    let mut byte = [0];
    while byte != *b"\n" {
        stdout.read_exact(&mut byte).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(stdin);
}

#[test]
fn a_run_finishes_its_step_saves_and_can_go_on() {
    let place = Place::new();
    place.write("data.jsonl", "{\"prompt\": \"hi\", \"completion\": \"ba be ca\"}\n".repeat(4));
    let data = place.path("data.jsonl").display().to_string();
    let run = place.path("run").display().to_string();
    // Steps beyond patience, and no checkpoint in time: it must come from the signal.
    let args = ["tune", &data, "--steps", "100000", "--save-every", "90000", "--out", &run];
    for signal in ["-INT", "-TERM"] {
        let mut child = match signal {
            "-INT" => start(&place, &args),
            _ => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_planish"));
                command.args(["tune", "--resume", &run]).stdout(Stdio::null()).stderr(Stdio::piped());
                command.spawn().unwrap()
            }
        };
        let stderr = std::io::BufReader::new(child.stderr.take().unwrap());
        let mut lines = std::io::BufRead::lines(stderr).map_while(Result::ok);
        assert!(lines.any(|line| line.starts_with("step ")), "it takes a step");
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        let rest: Vec<String> = lines.collect();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        let last = rest.join("\n");
        assert!(last.contains("a checkpoint is written") && last.contains("tune --resume"), "{last}");
        let checkpoints = std::fs::read_dir(place.path("run/checkpoints")).unwrap().count();
        assert_eq!(checkpoints, if signal == "-INT" { 1 } else { 2 });
    }
}
