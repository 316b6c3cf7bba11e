use serde_json::Value;

use crate::common::{Place, Tiny};

fn chat(place: &Place, args: &[&str], stdin: &str) -> Vec<Value> {
    let base = ["chat", "@tiny.gguf", "--json", "--temp", "0", "-n", "4"];
    place.run_with(&[&base[..], args].concat(), stdin).json()
}

#[test]
fn a_conversation_keeps_what_it_has_computed_and_answers_as_without() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    let turns = chat(&place, &[], "hi\n\nho\n");
    assert_eq!(turns.len(), 2, "blank lines are not messages");
    assert_eq!(turns[0]["reused_tokens"], 0);
    // At least the first prompt is still in the cache.
    assert!(turns[1]["reused_tokens"].as_u64() >= turns[0]["prompt_tokens"].as_u64());
    assert!(turns[1]["reused_tokens"].as_u64() < turns[1]["prompt_tokens"].as_u64());
    // After a reset the same message gets the same answer, over a cache that held something else.
    let again = chat(&place, &[], "hi\nho\n/reset\nhi\nho\n");
    let ids = |turns: &[Value]| turns.iter().map(|t| t["ids"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&again[..2]), ids(&turns));
    assert_eq!(ids(&again[2..]), ids(&turns));
}

#[test]
fn commands_are_no_messages() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    let plain = &chat(&place, &[], "hi\n")[0];
    let by_flag = &chat(&place, &["--system", "be brief"], "hi\n")[0];
    let by_line = &chat(&place, &[], "/system be brief\nhi\n/quit\nnever read\n")[..];
    assert_eq!(by_line.len(), 1);
    assert_eq!(
        (&by_line[0]["ids"], &by_line[0]["prompt_tokens"]),
        (&by_flag["ids"], &by_flag["prompt_tokens"])
    );
    assert!(by_flag["prompt_tokens"].as_u64() > plain["prompt_tokens"].as_u64());
    let removed = &chat(&place, &["--system", "be brief"], "/system\nhi\n")[0];
    assert_eq!(removed["prompt_tokens"], plain["prompt_tokens"]);
}

#[test]
fn what_does_not_fit_is_an_error_in_a_script() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    let run = place.run_with(&["chat", "@tiny.gguf", "--context", "16"], "hi\n");
    assert_eq!(run.code, Some(3), "{}", run.all());
    assert!(run.stderr.contains("do not fit"), "{}", run.stderr);
    place.tiny(&Tiny { template: None, ..Tiny::default() });
    assert_eq!(place.run_with(&["chat", "@tiny.gguf"], "hi\n").code, Some(3));
}
