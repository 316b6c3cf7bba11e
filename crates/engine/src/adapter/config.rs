//! `adapter_config.json` of PEFT: read leniently, except where a setting changes what the adapter computes.

use planish_base::{Error, Result};
use regex::RegexBuilder;
use serde_json::{Map, Value};

/// What PEFT assumes where the file is silent.
const DEFAULT_ALPHA: f64 = 8.0;

/// Memory that a compiled pattern may take.
const PATTERN_BYTES: usize = 1 << 20;

/// Rank and factor of each module.
pub(super) struct Config {
    pub(super) base: Option<String>,
    pub(super) rslora: bool,
    pub(super) dora: bool,
    pub(super) alpha: f64,
    /// None: the tensors say it.
    pub(super) rank: Option<usize>,
    ranks: Vec<(Pattern, f64)>,
    alphas: Vec<(Pattern, f64)>,
}

struct Pattern(regex::Regex);

impl Config {
    pub(super) fn parse(json: &Value) -> Result<Config> {
        let o = json.as_object().ok_or_else(|| wrong("the file is not an object"))?;
        refuse_unsupported(o)?;
        let rank = match o.get("r") {
            None | Some(Value::Null) => None,
            Some(v) => {
                let r = v.as_u64().filter(|r| *r > 0).ok_or_else(|| wrong(format!("`r` is {v}")))?;
                Some(r as usize)
            }
        };
        Ok(Config {
            base: o.get("base_model_name_or_path").and_then(Value::as_str).map(str::to_string),
            rslora: flag(o, "use_rslora"),
            dora: flag(o, "use_dora"),
            alpha: match o.get("lora_alpha") {
                None | Some(Value::Null) => DEFAULT_ALPHA,
                Some(v) => number(v, "lora_alpha")?,
            },
            rank,
            ranks: patterns(o, "rank_pattern")?,
            alphas: patterns(o, "alpha_pattern")?,
        })
    }

    /// The factor of a module whose A has `rank` rows.
    pub(super) fn scale(&self, module: &str, rank: usize) -> Result<f32> {
        let of = |patterns: &[(Pattern, f64)]| patterns.iter().find(|p| p.0.0.is_match(module)).map(|p| p.1);
        let stated = of(&self.ranks).or(self.rank.map(|r| r as f64));
        if let Some(stated) = stated.filter(|r| *r != rank as f64) {
            let message =
                format!("the pair of `{module}` has rank {rank}, adapter_config.json says {stated}");
            return Err(Error::input("adapter", message)
                .with_hint("the configuration belongs to another adapter_model.safetensors"));
        }
        let alpha = of(&self.alphas).unwrap_or(self.alpha);
        let divisor = if self.rslora { (rank as f64).sqrt() } else { rank as f64 };
        Ok((alpha / divisor) as f32)
    }
}

/// Patterns are tried in the order of the file: PEFT takes the first that matches the end of a module's path.
fn patterns(o: &Map<String, Value>, key: &str) -> Result<Vec<(Pattern, f64)>> {
    let Some(object) = o.get(key).and_then(Value::as_object) else { return Ok(Vec::new()) };
    let pattern = |(text, value): (&String, &Value)| {
        let regex = RegexBuilder::new(&format!(r"^(?:.*\.)?(?:{text})$")).size_limit(PATTERN_BYTES).build();
        let regex = regex.map_err(|e| {
            wrong(format!("`{key}` has a pattern {text:?} that is no regular expression"))
                .with_hint("write the names of the modules out")
                .with_source(e)
        })?;
        Ok((Pattern(regex), number(value, key)?))
    };
    object.iter().map(pattern).collect()
}

fn number(v: &Value, key: &str) -> Result<f64> {
    v.as_f64()
        .filter(|v| v.is_finite() && *v != 0.0)
        .ok_or_else(|| wrong(format!("`{key}` holds {v}, expected a number other than 0")))
}

fn flag(o: &Map<String, Value>, key: &str) -> bool {
    o.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// Everything that makes the adapter more, or something else, than W x + scale B A x.
fn refuse_unsupported(o: &Map<String, Value>) -> Result<()> {
    let kind = o.get("peft_type").and_then(Value::as_str).unwrap_or("LORA");
    if kind != "LORA" {
        return Err(refuse(format!("the adapter is of type `{kind}`"), "planish applies LoRA adapters"));
    }
    let merge = "merge it into its base with peft (merge_and_unload), and convert the result";
    let flags = [
        ("lora_bias", "it has biases on B"),
        ("fan_in_fan_out", "its matrices are transposed (`fan_in_fan_out`)"),
        ("use_qalora", "it is a QA-LoRA adapter"),
    ];
    if let Some((_, why)) = flags.into_iter().find(|(key, _)| flag(o, key)) {
        return Err(refuse(why, merge));
    }
    // These starts take a part of the base away, and the adapter is meant for what remains.
    let changing = ["pissa", "olora", "corda", "loftq", "lora_ga"];
    let start = o.get("init_lora_weights").and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
    if changing.iter().any(|name| start.starts_with(name)) {
        let why = format!("it belongs to a base that its start changed (`init_lora_weights` is `{start}`)");
        let hint = "save it with peft's path_initial_model_for_weight_conversion, which makes it one of the base itself";
        return Err(refuse(why, hint));
    }
    let filled = |key: &str| match o.get(key) {
        None | Some(Value::Null) => false,
        Some(Value::Array(a)) => !a.is_empty(),
        Some(Value::Object(a)) => !a.is_empty(),
        Some(Value::Bool(b)) => *b,
        Some(_) => true,
    };
    let lists = [
        ("modules_to_save", "it holds whole trained modules (`modules_to_save`)"),
        ("trainable_token_indices", "it holds trained token embeddings (`trainable_token_indices`)"),
        ("target_parameters", "it adapts parameters outside of linear maps (`target_parameters`)"),
        ("layer_replication", "it repeats layers (`layer_replication`)"),
        ("use_bdlora", "it is block-diagonal (`use_bdlora`)"),
        ("alora_invocation_tokens", "it acts only after its invocation tokens (aLoRA)"),
    ];
    if let Some((_, why)) = lists.into_iter().find(|(key, _)| filled(key)) {
        return Err(refuse(why, merge));
    }
    match o.get("bias").and_then(Value::as_str) {
        None | Some("none") => Ok(()),
        Some(bias) => Err(refuse(format!("it trains biases (`bias` is `{bias}`)"), merge)),
    }
}

fn refuse(why: impl std::fmt::Display, hint: &str) -> Error {
    Error::input("adapter", format!("adapter_config.json: {why}")).with_hint(hint)
}

fn wrong(what: impl std::fmt::Display) -> Error {
    Error::input("adapter", format!("adapter_config.json: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const Q0: &str = "model.layers.0.self_attn.q_proj";

    #[test]
    fn factors_follow_the_first_pattern_that_matches_the_end_of_the_path() {
        let config = Config::parse(&json!({
            "r": 4, "lora_alpha": 8,
            "rank_pattern": {"layers.0.self_attn.q_proj": 2, r".*layers\.1\..*": 16},
            "alpha_pattern": {"q_proj": 6, "layers.0.self_attn.q_proj": 100},
        }))
        .unwrap();
        assert_eq!(config.scale(Q0, 2).unwrap(), 3.0);
        assert_eq!(config.scale("model.layers.0.self_attn.xq_proj", 4).unwrap(), 2.0);
        assert_eq!(config.scale("model.layers.1.mlp.up_proj", 16).unwrap(), 0.5);
        assert_eq!(config.scale("model.layers.1.mlp.up_proj", 4).unwrap_err().code(), "adapter");
    }

    #[test]
    fn rslora_divides_by_the_root() {
        let config = Config::parse(&json!({"r": 16, "lora_alpha": 8, "use_rslora": true})).unwrap();
        assert_eq!(config.scale(Q0, 16).unwrap(), 2.0);
    }

    #[test]
    fn what_would_compute_something_else_is_refused_with_a_hint() {
        let cases = [
            json!({"init_lora_weights": "pissa_niter_4"}),
            json!({"init_lora_weights": "olora"}),
            json!({"lora_bias": true}),
            json!({"fan_in_fan_out": true}),
            json!({"modules_to_save": ["lm_head"]}),
            json!({"bias": "all"}),
            json!({"peft_type": "IA3"}),
            json!({"trainable_token_indices": [1]}),
        ];
        for json in cases {
            let e = Config::parse(&json).map(|_| ()).unwrap_err();
            assert!(e.code() == "adapter" && e.hint().is_some(), "{json}: {e:?}");
        }
        for json in [json!([]), json!({"r": 0}), json!({"lora_alpha": 0}), json!({"rank_pattern": {"(": 1}})]
        {
            assert_eq!(Config::parse(&json).map(|_| ()).unwrap_err().code(), "adapter", "{json}");
        }
        assert!(
            Config::parse(&json!({"modules_to_save": [], "use_dora": null, "init_lora_weights": "gaussian", "unheard": {"of": 1}})).is_ok()
        );
    }
}
