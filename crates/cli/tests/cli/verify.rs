use crate::common::{Place, Tiny};
use crate::snapshot;

#[test]
fn a_sound_model_passes_and_each_failure_is_named() {
    let place = Place::new();
    place.tiny(&Tiny::default());
    snapshot!("verify", place.run(&["verify", "@tiny.gguf"]).all());
    // A template that never writes an end of turn.
    let template = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
    place.tiny(&Tiny { template: Some(template), ..Tiny::default() });
    snapshot!("verify_failed", place.run(&["verify", "@tiny.gguf"]).all());
    let run = place.run(&["verify", "@tiny.gguf", "--json"]);
    assert_eq!(run.code, Some(1));
    let error: serde_json::Value = serde_json::from_str(&run.stderr).unwrap();
    assert_eq!(error["error"]["kind"], "check");
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["verify"]["ok"], false);
    assert_eq!(place.run(&["verify", "@absent"]).code, Some(3));
}
