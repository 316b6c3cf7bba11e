use crate::common::{Place, planish, shared};

/// The text that llama.cpp writes for this model, from both versions of the file.
#[test]
fn a_real_model_writes_what_llama_cpp_writes() {
    let Some(dir) = shared("models/stories260K") else { return };
    let want = std::fs::read(dir.join("expected_greedy_200.txt")).unwrap();
    for name in ["stories260K-f32.v3.gguf", "tinyllamas-stories-260k-f32.gguf"] {
        let mut command = planish();
        command.arg("generate").arg(dir.join(name)).args([
            "-p",
            "",
            "-n",
            "200",
            "--temp",
            "0",
            "--precision",
            "f32",
        ]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{name}");
        assert!(output.stdout == want, "{name}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn a_real_model_reads_its_own_text_easily() {
    let Some(dir) = shared("models/stories260K") else { return };
    let place = Place::new();
    let text = std::fs::read(dir.join("expected_greedy_200.txt")).unwrap();
    place.write("story.txt", text);
    let model = dir.join("stories260K-f16.v3.gguf").display().to_string();
    let summary = place.run(&["eval", &model, "@story.txt", "--json"]).json()[0]["summary"].clone();
    assert!(summary["loss"].as_f64().unwrap() < 0.7, "{summary}");
}
