use crate::common::{Place, Tiny};
use crate::snapshot;

const IDS: &str = "{\"input_ids\": [5, 6, 7, 8], \"labels\": [-100, -100, 7, 8]}\n{\"input_ids\": [9, 10]}\n";

#[test]
fn token_ids_are_scored_one_by_one() {
    let place = Place::new();
    place.tiny(&Tiny { tokenizer: false, ..Tiny::default() });
    place.write("ids.jsonl", IDS);
    let base = ["eval", "@tiny.gguf", "@ids.jsonl"];
    snapshot!("eval", place.run(&base).all());
    let lines = place.run(&[&base[..], &["--json", "--logprobs", "--top", "300"]].concat()).json();
    let of = |key: &str| lines[..3].iter().map(|l| l[key].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((of("doc"), of("pos"), of("id")), (vec![0, 0, 1], vec![2, 3, 1], vec![7, 8, 10]));
    for line in &lines[..3] {
        let top = line["top"].as_array().unwrap();
        let probability: f64 = top.iter().map(|t| t[1].as_f64().unwrap().exp()).sum();
        assert!((probability - 1.0).abs() < 1e-4);
        let own = top.iter().find(|t| t[0] == line["id"]).unwrap();
        assert!((own[1].as_f64().unwrap() - line["logprob"].as_f64().unwrap()).abs() < 1e-4);
    }
    let sum: f64 = lines[..3].iter().map(|l| l["logprob"].as_f64().unwrap()).sum();
    let summary = &lines[3]["summary"];
    assert!((summary["loss"].as_f64().unwrap() + sum / 3.0).abs() < 1e-6);
    assert!((summary["ppl"].as_f64().unwrap().ln() - summary["loss"].as_f64().unwrap()).abs() < 1e-9);
    assert_eq!(summary["tokens"], 3);
    assert_eq!(place.run(&[&base[..], &["--logprobs", "--top", "301"]].concat()).code, Some(2));
}

#[test]
fn lengths_are_a_policy() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    place.write("ids.jsonl", IDS);
    let tokens = |policy: &str| {
        let args =
            ["eval", "@tiny.gguf", "@ids.jsonl", "--context", "3", "--json", "--max-length-policy", policy];
        place.run(&args).json()[0]["summary"]["tokens"].clone()
    };
    assert_eq!((tokens("drop"), tokens("truncate"), tokens("split")), (1.into(), 2.into(), 3.into()));
}

#[test]
fn text_is_scored_with_its_pieces() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    place.write("data.jsonl", "{\"prompt\": \"hi\", \"completion\": \"ba\\n\"}\n");
    let lines = place.run(&["eval", "@tiny.gguf", "@data.jsonl", "--logprobs", "--json"]).json();
    let texts: Vec<_> = lines[..3].iter().map(|l| l["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["ba", "\n", "<|im_end|>"]);
    assert_eq!(lines[0]["top"].as_array().unwrap().len(), 0);
}
