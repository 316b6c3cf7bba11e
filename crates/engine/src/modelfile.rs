//! The text of an Ollama Modelfile.
//!
//! Ollama wants its chat template as a Go template. Translating Jinja would be guessing; instead a probe conversation
//! is rendered with the model's own template and compared with what each known format gives for it. A `TEMPLATE` is
//! written only when the two texts are equal, so it is never another format than the one that was trained on.

use std::fmt::Write;

use planish_base::{Error, Result};
use planish_text::{ChatTemplate, Message, Tokenizer};

use crate::model::Model;
use crate::verify::turn_end;

/// What the Modelfile says beside the model.
#[derive(Clone, Copy, Debug)]
pub struct ModelfileOptions<'a> {
    /// Path of the GGUF file, as `FROM` takes it: relative to the Modelfile, or absolute.
    pub from: &'a str,
    /// Path of an adapter GGUF of that very base.
    pub adapter: Option<&'a str>,
    /// Context in tokens.
    pub num_ctx: usize,
}

/// A chat format that both sides know.
struct Format {
    name: &'static str,
    /// The text of a conversation without its BOS token; a last turn of the user is followed by the prompt to answer.
    render: fn(&[Message]) -> String,
    /// What stands before and after a system message at the start of the text.
    system: Option<(&'static str, &'static str)>,
    /// The same as a Go template.
    go: &'static str,
}

/// Roles that come before the answer in each probe.
const PROBE: [(&str, &str); 3] = [("user", "first question"), ("assistant", "an answer"), ("user", "second")];

/// Writes the Modelfile of a model, or of a base with an adapter.
///
/// # Errors
/// Kind `Usage` for a path with a line break.
pub fn modelfile(model: &Model, options: &ModelfileOptions) -> Result<String> {
    let mut out = String::new();
    push_path(&mut out, "FROM", options.from)?;
    if let Some(adapter) = options.adapter {
        out.push_str(
            "# The adapter fits this base only: the same model of another type gives other results.\n",
        );
        push_path(&mut out, "ADAPTER", adapter)?;
    }
    if let (Some(template), Some(tokenizer)) = (&model.template, &model.tokenizer) {
        push_template(&mut out, template, tokenizer);
        push_stops(&mut out, template, tokenizer);
    } else {
        out.push_str("# The model has no chat template: it continues text.\n");
    }
    let _ = writeln!(out, "PARAMETER num_ctx {}", options.num_ctx);
    Ok(out)
}

fn push_path(out: &mut String, verb: &str, path: &str) -> Result<()> {
    if path.is_empty() || path.contains(['\n', '\r']) {
        return Err(Error::usage("path", format!("{path:?} cannot stand in a Modelfile")));
    }
    let _ = writeln!(out, "{verb} {path}");
    Ok(())
}

fn push_template(out: &mut String, template: &ChatTemplate, tokenizer: &Tokenizer) {
    let bos = tokenizer.bos().and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
    let Some((format, system)) = FORMATS.iter().find_map(|f| Some((f, recognise(f, template, bos)?))) else {
        out.push_str("# The chat format is none that planish knows as a Go template: Ollama uses the template in the\n");
        out.push_str("# GGUF where it knows it.\n");
        return;
    };
    let _ = writeln!(out, "# {}", format.name);
    let _ = writeln!(out, "TEMPLATE \"\"\"{}\"\"\"", format.go);
    // Without it, Ollama would leave out what the model's own template says where there is no system message.
    if let Some(system) = system.filter(|s| !s.contains("\"\"\"")) {
        let _ = writeln!(out, "SYSTEM \"\"\"{system}\"\"\"");
    }
}

/// The system message that the template puts in by itself, or None when it is not this format.
fn recognise(format: &Format, template: &ChatTemplate, bos: &str) -> Option<Option<String>> {
    let turns: Vec<Message> = PROBE.iter().map(|(role, content)| Message::new(*role, *content)).collect();
    // A model may have the mark that begins a turn as its BOS token: there it is part of the turn.
    let bos = if (format.render)(&turns).starts_with(bos) { "" } else { bos };
    let text = |messages: &[Message]| {
        let text = template.render(messages, None, true).ok()?;
        Some(text.strip_prefix(bos).map_or(text.clone(), str::to_string))
    };
    let with_system = |system: &str| {
        let mut messages = vec![Message::new("system", system)];
        messages.extend(turns.iter().cloned());
        messages
    };
    if format.system.is_some() {
        let messages = with_system("be brief");
        if text(&messages)? != (format.render)(&messages) {
            return None;
        }
    }
    let plain = text(&turns)?;
    if plain == (format.render)(&turns) {
        return Some(None);
    }
    let (before, after) = format.system?;
    let (system, _) = plain.strip_prefix(before)?.split_once(after)?;
    (plain == (format.render)(&with_system(system))).then(|| Some(system.to_string()))
}

fn push_stops(out: &mut String, template: &ChatTemplate, tokenizer: &Tokenizer) {
    let ends = [turn_end(tokenizer, template).ok(), tokenizer.eot(), tokenizer.eos()];
    let mut texts: Vec<&str> = Vec::new();
    for text in ends.into_iter().flatten().filter(|id| tokenizer.is_end_of_generation(*id)) {
        if let Some(text) = tokenizer.token_text(text).filter(|t| !texts.contains(t)) {
            texts.push(text);
        }
    }
    for text in texts {
        let _ = writeln!(out, "PARAMETER stop {text:?}");
    }
}

static FORMATS: &[Format] = &[
    Format {
        name: "ChatML",
        render: |messages| {
            let turn = |m: &Message| format!("<|im_start|>{}\n{}<|im_end|>\n", m.role, m.content);
            answered(messages, turn, "<|im_start|>assistant\n")
        },
        system: Some(("<|im_start|>system\n", "<|im_end|>\n")),
        go: "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}\
             <|im_start|>assistant\n",
    },
    Format {
        name: "Llama 3",
        render: |messages| {
            let head = |role: &str| format!("<|start_header_id|>{role}<|end_header_id|>\n\n");
            let turn = |m: &Message| format!("{}{}<|eot_id|>", head(&m.role), m.content);
            answered(messages, turn, &head("assistant"))
        },
        system: Some(("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>")),
        go: "{{- range .Messages }}<|start_header_id|>{{ .Role }}<|end_header_id|>\n\n\
             {{ .Content }}<|eot_id|>{{ end }}<|start_header_id|>assistant<|end_header_id|>\n\n",
    },
    Format {
        name: "Llama 2",
        render: llama2,
        system: Some(("[INST] <<SYS>>\n", "\n<</SYS>>\n\n")),
        go: LLAMA2,
    },
    Format {
        name: "Mistral",
        render: |messages| inst(messages, " [/INST]", " "),
        system: None,
        go: "{{- range .Messages }}{{ if eq .Role \"user\" }}[INST] {{ .Content }} [/INST]\
             {{ else if eq .Role \"assistant\" }} {{ .Content }}</s>{{ end }}{{ end }}",
    },
    Format {
        name: "Mistral (v3 tokenizer)",
        render: |messages| inst(messages, "[/INST]", " "),
        system: None,
        go: "{{- range .Messages }}{{ if eq .Role \"user\" }}[INST] {{ .Content }}[/INST]\
             {{ else if eq .Role \"assistant\" }} {{ .Content }}</s>{{ end }}{{ end }}",
    },
    Format {
        name: "Gemma",
        render: |messages| {
            let role = |m: &Message| if m.role == "assistant" { "model" } else { "user" };
            let turn = |m: &Message| format!("<start_of_turn>{}\n{}<end_of_turn>\n", role(m), m.content);
            answered(messages, turn, "<start_of_turn>model\n")
        },
        system: None,
        go: "{{- range .Messages }}<start_of_turn>{{ if eq .Role \"assistant\" }}model{{ else }}user{{ end }}\n\
             {{ .Content }}<end_of_turn>\n{{ end }}<start_of_turn>model\n",
    },
];

fn answered(messages: &[Message], turn: impl Fn(&Message) -> String, prompt: &str) -> String {
    messages.iter().map(turn).collect::<String>() + prompt
}

fn inst(messages: &[Message], close: &str, gap: &str) -> String {
    let turn = |m: &Message| match m.role.as_str() {
        "user" => format!("[INST] {}{close}", m.content),
        _ => format!("{gap}{}</s>", m.content),
    };
    answered(messages, turn, "")
}

/// The system message is part of the first question, and every question after it begins with a BOS of its own.
const LLAMA2: &str = "{{- $system := \"\" }}{{ range .Messages }}{{ if eq .Role \"system\" }}\
    {{ $system = .Content }}{{ end }}{{ end }}{{ $first := true }}{{ range .Messages }}\
    {{ if eq .Role \"user\" }}{{ if not $first }}<s>{{ end }}[INST] {{ if and $first $system }}<<SYS>>\n\
    {{ $system }}\n<</SYS>>\n\n{{ end }}{{ .Content }} [/INST]{{ $first = false }}\
    {{ else if eq .Role \"assistant\" }} {{ .Content }} </s>{{ end }}{{ end }}";

fn llama2(messages: &[Message]) -> String {
    let mut out = String::new();
    let mut system = "";
    let mut first = true;
    for m in messages {
        match m.role.as_str() {
            "system" => system = &m.content,
            "user" => {
                out.push_str(if first { "[INST] " } else { "<s>[INST] " });
                if first && !system.is_empty() {
                    let _ = write!(out, "<<SYS>>\n{system}\n<</SYS>>\n\n");
                }
                let _ = write!(out, "{} [/INST]", m.content);
                first = false;
            }
            _ => {
                let _ = write!(out, " {} </s>", m.content);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Templates as the models of each format have them, reduced to what a plain conversation reaches.
    #[test]
    fn formats_are_recognised_by_what_the_template_writes() {
        let chatml = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}\
                      {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
        let helpful = "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}\
                       {% endif %}";
        let llama3 = "{% for m in messages %}{% set c = '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' \
                      + m.content | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set c = bos_token + c %}\
                      {% endif %}{{ c }}{% endfor %}{% if add_generation_prompt %}\
                      {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
        let llama2 = "{% if messages[0].role == 'system' %}{% set ms = messages[1:] %}{% set s = messages[0].content %}\
                      {% else %}{% set ms = messages %}{% set s = false %}{% endif %}{% for m in ms %}\
                      {% if loop.index0 == 0 and s != false %}{% set c = '<<SYS>>\n' + s + '\n<</SYS>>\n\n' + m.content %}\
                      {% else %}{% set c = m.content %}{% endif %}{% if m.role == 'user' %}\
                      {{ bos_token + '[INST] ' + c.strip() + ' [/INST]' }}{% else %}\
                      {{ ' ' + c.strip() + ' ' + eos_token }}{% endif %}{% endfor %}";
        let mistral = "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}\
                       {% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}{% else %}\
                       {{ raise_exception('no') }}{% endif %}{% endfor %}";
        let gemma = "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}\
                     {% for m in messages %}{% if m.role == 'assistant' %}{% set r = 'model' %}{% else %}\
                     {% set r = m.role %}{% endif %}{{ '<start_of_turn>' + r + '\n' + m.content | trim + '<end_of_turn>\n' }}\
                     {% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";
        let cases = [
            (chatml.to_string(), "ChatML", None),
            (format!("{helpful}{chatml}"), "ChatML", Some("You help.")),
            (llama3.to_string(), "Llama 3", None),
            (llama2.to_string(), "Llama 2", None),
            (mistral.to_string(), "Mistral", None),
            (mistral.replace(" [/INST]", "[/INST]"), "Mistral (v3 tokenizer)", None),
            (gemma.to_string(), "Gemma", None),
        ];
        for (source, name, system) in cases {
            let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
            let found: Vec<_> =
                FORMATS.iter().filter_map(|f| Some((f.name, recognise(f, &template, "<s>")?))).collect();
            assert_eq!(found, [(name, system.map(str::to_string))], "{source}");
        }
        // The mark of a turn as BOS token, and the system message inside the loop.
        let inside = chatml.replacen(
            "%}",
            "%}{% if loop.first and m.role != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}",
            1,
        );
        for (source, system) in [(chatml, None), (inside.as_str(), Some("You help.".to_string()))] {
            let template = ChatTemplate::new(source, "<|im_start|>", "<|im_end|>").unwrap();
            let found: Vec<_> = FORMATS
                .iter()
                .filter_map(|f| Some((f.name, recognise(f, &template, "<|im_start|>")?)))
                .collect();
            assert_eq!(found, [("ChatML", system)], "{source}");
        }
        for source in ["{{ messages[0].content }}", &chatml.replace("<|im_end|>\n", "<|im_end|>")] {
            let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
            assert!(FORMATS.iter().all(|f| recognise(f, &template, "<s>").is_none()), "{source}");
        }
    }
}
