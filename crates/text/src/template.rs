//! The model's own Jinja chat template, rendered under a budget.
//!
//! A template comes from a file that a stranger wrote. Fuel bounds its time and its memory (64 bytes a unit), it sees
//! no clock, no file and no environment, and it can fail only with an error. What fuel does not see is bounded by
//! [`guard`] and by a time limit.

use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{fmt, thread};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, ErrorKind, State, context};
use planish_base::{Error, Result};
use planish_store::fs;
use planish_store::gguf::Metadata;
use regex::Regex;
use serde::Serialize;

use crate::date::Date;
use crate::guard;
use crate::{Message, Tokenizer};

/// The longest template of a known model has about 40 kB.
const MAX_SOURCE_BYTES: usize = 256 * 1024;
/// Instructions, or blocks of 64 bytes produced: at most 128 MiB a rendering.
const FUEL: u64 = 2_000_000;
const MAX_OUTPUT_BYTES: usize = 32 * 1024 * 1024;
/// A template's own message is shown as one line of at most this many characters.
const MAX_RAISED_CHARS: usize = 300;
/// All fuel burns in a fraction of a second. Comparing nested lists costs no fuel and could take for ever.
const TIME_LIMIT: Duration = Duration::from_secs(4);
/// Values nested as deep as fuel allows are dropped by recursion.
const STACK_BYTES: usize = 64 * 1024 * 1024;

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    environment: Arc<Environment<'static>>,
    bos: String,
    eos: String,
    date: Option<String>,
}

/// What `raise_exception` carries out of the template.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

impl ChatTemplate {
    /// Compiles `source`; `bos` and `eos` are the texts of these tokens, or empty. Errors: a syntax error with its
    /// line, or a source above 256 KiB.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate> {
        if source.len() > MAX_SOURCE_BYTES {
            let text = format!("chat template of {} bytes, at most {MAX_SOURCE_BYTES}", source.len());
            return Err(Error::input("template too long", text));
        }
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        // As transformers sets Jinja2 up; templates are written for it.
        let syntax =
            SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(explain)?;
        let source_seen = without_generation_tags(source)?;
        guard::check_source(&source_seen, &syntax)?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.remove_global("debug");
        environment.set_formatter(|out, state, value| {
            guard::charge(state, value)?;
            minijinja::escape_formatter(out, state, value)
        });
        environment.add_filter("tojson", to_json);
        environment.add_filter("string", |state: &State, value: &Value| {
            guard::charge(state, value)?;
            Ok(Value::from(value.to_string()))
        });
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", |_: String| no_date());
        environment.add_template_owned("chat_template", source_seen).map_err(explain)?;
        let environment = Arc::new(environment);
        let (source, bos, eos) = (source.to_owned(), bos.to_owned(), eos.to_owned());
        Ok(ChatTemplate { source, environment, bos, eos, date: None })
    }

    /// The template of a GGUF file (`tokenizer.chat_template`), or `None` where it has none.
    pub fn from_gguf(m: &Metadata, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>> {
        let Some(source) = m.str("tokenizer.chat_template")? else { return Ok(None) };
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
        Self::new(source, text(tokenizer.bos()), text(tokenizer.eos())).map(Some)
    }

    /// Sets what `strftime_now` in a template gives, at midnight. Without it, a template that asks for the date is an
    /// error, so that no rendering depends on the clock. Errors: `date` is not a day written `YYYY-MM-DD`.
    pub fn with_date(mut self, date: &str) -> Result<ChatTemplate> {
        self.date = Some(date.to_owned());
        let date = Date::parse(date)
            .ok_or_else(|| Error::usage("date", format!("{date:?} is not a date, expected YYYY-MM-DD")))?;
        Arc::make_mut(&mut self.environment).add_function("strftime_now", move |format: String| {
            date.format(&format).map_err(|text| minijinja::Error::new(ErrorKind::InvalidOperation, text))
        });
        Ok(self)
    }

    /// The template as it stands in the file.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// SHA-256 of all that a rendering depends on beside the conversation.
    pub fn fingerprint(&self) -> String {
        let parts = (&self.source, &self.bos, &self.eos, &self.date);
        fs::sha256(serde_json::json!(parts).to_string().as_bytes())
    }

    /// Renders a conversation; `tools` is a JSON array of tool descriptions. Errors: what the template raises, with
    /// its message; a mistake in the template, with its line; too much work or output.
    pub fn render(
        &self,
        messages: &[Message],
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let out = self.render_in_time(context! {
            messages => Value::from(Serde(messages)),
            tools => tools.map_or(Value::from(()), |t| Value::from(Serde(t))),
            add_generation_prompt => add_generation_prompt,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        })?;
        if out.len() > MAX_OUTPUT_BYTES {
            let text = format!("chat template made {} bytes, at most {MAX_OUTPUT_BYTES}", out.len());
            return Err(Error::input("template output", text).with_hint("split the conversation"));
        }
        Ok(out)
    }

    /// Renders on a thread of its own, which is left behind when it takes too long: a rendering cannot be stopped.
    fn render_in_time(&self, context: Value) -> Result<String> {
        let environment = Arc::clone(&self.environment);
        let (sender, receiver) = mpsc::channel();
        let work = move || {
            let result = environment.get_template("chat_template").and_then(|t| t.render(context));
            // Nobody listens any more once the time is over.
            _ = sender.send(result);
        };
        thread::Builder::new().name("template".to_owned()).stack_size(STACK_BYTES).spawn(work).map_err(
            |e| Error::resource("thread", "cannot start a thread for the chat template").with_source(e),
        )?;
        match receiver.recv_timeout(TIME_LIMIT) {
            Ok(result) => result.map_err(explain),
            Err(_) => {
                let text = format!("chat template takes longer than {} s", TIME_LIMIT.as_secs());
                Err(Error::input("template time", text).with_hint("the template builds huge nested values"))
            }
        }
    }
}

/// `{% generation %}` marks what an assistant says, for a mask that we compute by rendering. It changes no text, so
/// it becomes a condition that always holds, with the same blanks around it.
fn without_generation_tags(source: &str) -> Result<String> {
    let tag = |pattern| {
        Regex::new(pattern).map_err(|e| Error::input("template", "pattern does not compile").with_source(e))
    };
    let opened = tag(r"\{%([-+]?)\s*generation\s*([-+]?)%\}")?.replace_all(source, "{%${1} if true ${2}%}");
    Ok(tag(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}")?
        .replace_all(&opened, "{%${1} endif ${2}%}")
        .into_owned())
}

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn no_date() -> Result<Value, minijinja::Error> {
    let message = "the chat template asks for today's date, which would make the result depend on the clock";
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

/// What the template raised, in its own words; else the mistake and its line.
fn explain(error: minijinja::Error) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(e) = source {
        if let Some(Raised(message)) = e.downcast_ref() {
            let shown: String = message.chars().take(MAX_RAISED_CHARS).collect();
            let line = shown.split_whitespace().collect::<Vec<_>>().join(" ");
            return Error::input("template raised", format!("chat template refuses this: {line}"));
        }
        source = e.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        let line = error.line().map(|l| format!(" (line {l})")).unwrap_or_default();
        return Error::input("template fuel", format!("chat template does too much work{line}"))
            .with_hint("the template loops, or the conversation is far too long for one example");
    }
    let place = error.line().map(|l| format!(" line {l}")).unwrap_or_default();
    let detail = error.detail().unwrap_or_default().to_owned();
    let separator = if detail.is_empty() { "" } else { ": " };
    let text = format!("chat template{place}: {}{separator}{detail}", error.kind());
    let mut out = Error::input("template", text);
    if detail.contains("today's date") {
        out = out.with_hint("give a fixed date with --date");
    }
    out.with_source(error)
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it, which is what models were trained on: a blank
/// after `,` and `:`, nothing escaped for HTML.
fn to_json(state: &State, value: &Value, kwargs: Kwargs) -> Result<Value, minijinja::Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    // Accepted for the sake of templates that pass it; non-ASCII text is never escaped.
    let _: Option<bool> = kwargs.get("ensure_ascii")?;
    let _: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    guard::charge(state, value)?;
    let bad = |e: serde_json::Error| {
        minijinja::Error::new(ErrorKind::BadSerialization, "value is not JSON").with_source(e)
    };
    let json = serde_json::to_value(value).map_err(bad)?;
    let mut out = Vec::new();
    match indent {
        None => json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, PythonStyle)),
        Some(n) => {
            let blanks = " ".repeat(n.min(16));
            let style = serde_json::ser::PrettyFormatter::with_indent(blanks.as_bytes());
            json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, style))
        }
    }
    .map_err(bad)?;
    state.consume_fuel((out.len() / 4) as u64)?;
    Ok(Value::from(String::from_utf8_lossy(&out).into_owned()))
}

struct PythonStyle;

impl serde_json::ser::Formatter for PythonStyle {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        w.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String> {
        ChatTemplate::new(source, "<s>", "</s>")?.render(&[Message::new("user", "hi")], None, true)
    }

    #[test]
    fn work_memory_source_and_output_are_bounded() {
        let nested = "{% for a in range(9999) %}".repeat(3) + "x" + &"{% endfor %}".repeat(3);
        assert_eq!(render(&nested).unwrap_err().code(), "template fuel");
        let doubling = "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}";
        assert_eq!(render(doubling).unwrap_err().code(), "template fuel");
        let capture = "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set t %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = t %}{% endfor %}";
        assert_eq!(render(capture).unwrap_err().code(), "template fuel");
        let replace = "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s.replace('x', 'xxxxxxxx') %}{% endfor %}";
        assert_eq!(render(replace).unwrap_err().code(), "template fuel");
        let huge = " ".repeat(MAX_SOURCE_BYTES + 1);
        assert_eq!(render(&huge).unwrap_err().code(), "template too long");
        let wide = "{{ 'x' * 40000000 }}";
        assert!(["template output", "template fuel"].contains(&render(wide).unwrap_err().code()));
        let deep = "{% if true %}".repeat(20_000);
        assert_eq!(render(&deep).unwrap_err().code(), "template");
        for chain in [".b", "+1", "~1", "()", "[0]", "|string", " and 1", " if 1 else 1"] {
            let long = format!("{{{{ a{} }}}}", chain.repeat(20_000));
            assert_eq!(render(&long).unwrap_err().code(), "template", "{chain}");
        }
        for prefix in ["-", "not ", "("] {
            let long = format!("{{{{ {}1 }}}}", prefix.repeat(60_000));
            assert_eq!(render(&long).unwrap_err().code(), "template", "{prefix}");
        }
        let macro_loop = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
        assert!(render(macro_loop).is_err());
    }

    #[test]
    fn values_that_contain_much_or_themselves_are_an_error() {
        let doubled = |end: &str| {
            let set = "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}";
            format!(
                "{{% set n = namespace(a=[1], b=[1]) %}}{{% for i in range(60) %}}{set}{{% endfor %}}{end}"
            )
        };
        for end in ["{{ n.a }}", "{{ n.a|tojson }}", "{{ n.a|string|length }}"] {
            assert_eq!(render(&doubled(end)).unwrap_err().code(), "template fuel", "{end}");
        }
        assert_eq!(render(&doubled("{{ n.a == n.b }}")).unwrap_err().code(), "template time");
        for own in [
            "{% set n = namespace() %}{% set n.a = n %}{{ n }}",
            "{% set n = namespace() %}{% set n.a = [n] %}{{ n.a ~ 1 }}",
            "{% set f = namespace %}{% set n = f() %}{% set n.a = n %}{{ n }}",
            "{% set n = namespace() %}{% import 'chat_template' as m %}{% set n.a = m %}{{ n.a }}",
        ] {
            assert_eq!(render(own).unwrap_err().code(), "template", "{own}");
        }
        let plain = "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}";
        assert_eq!(render(plain).unwrap(), "1");
    }

    #[test]
    fn what_a_template_raises_is_shown_in_its_words() {
        let e = render("{{ raise_exception('roles must alternate') }}").unwrap_err();
        assert_eq!(e.code(), "template raised");
        assert_eq!(e.to_string(), "chat template refuses this: roles must alternate");
        let e = render("a\n{{ nope() }}").unwrap_err();
        assert!(e.to_string().contains("line 2"), "{e}");
        assert_eq!(render("{% for %}").unwrap_err().code(), "template");
    }

    #[test]
    fn the_date_is_given_never_read() {
        let source = "{{ strftime_now('%d %b %Y, %A %B %y%%') }}";
        assert!(render(source).unwrap_err().to_string().contains("today's date"));
        let t = ChatTemplate::new(source, "", "").unwrap().with_date("2024-02-29").unwrap();
        assert_eq!(t.render(&[], None, false).unwrap(), "29 Feb 2024, Thursday February 24%");
        for bad in ["2023-02-29", "2024-13-01", "2024-1-01", "today", "2024-01-00"] {
            assert!(ChatTemplate::new(source, "", "").unwrap().with_date(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn generation_tags_change_nothing() {
        assert_eq!(render("a {%- generation %}b{% endgeneration -%} c").unwrap(), "abc");
    }
}
