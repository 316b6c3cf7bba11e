//! Conversations to tokens, with a mask over what the assistant says.
//!
//! The mask needs no mark in the template: the text up to and including the generation prompt is rendered, then the
//! text with the turn, and what was added is the turn. This holds for any template whose rendering of a conversation
//! begins with the rendering of its first messages, which is checked.

use std::ops::Range;

use planish_base::{Error, Result};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::tokenizer::Pieces;
use crate::{ChatTemplate, Example, Tokenizer};

/// Roles that templates know.
pub const ROLES: &[&str] = &["system", "developer", "user", "assistant", "tool", "function", "ipython"];

/// Each trained turn renders the conversation anew, so the work grows with the square of this.
const MAX_MESSAGES: usize = 2_000;

/// One message of a conversation; further fields (`name`, `tool_calls`, ..) reach the template as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Message {
    /// Who speaks, one of [`ROLES`].
    pub role: String,
    /// What is said.
    pub content: String,
    /// All other fields.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message without further fields.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into(), extra: Map::new() }
    }
}

/// A message, and whether the loss covers it.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// The message.
    pub message: Message,
    /// Only an assistant's message is ever trained.
    pub train: bool,
}

/// Turns records of a data set, and prompts, into tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Encoder<'a> {
    /// Needed for everything but token ids.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Needed for conversations.
    pub template: Option<&'a ChatTemplate>,
    /// Recognise control tokens in the content of messages. Off, the text `<|im_end|>` in a message stays text.
    pub specials_in_content: bool,
}

/// Messages, tools, and the mark that was put into them, if one was needed.
type Guarded = (Vec<Message>, Option<Value>, Option<char>);

/// A rendered conversation, with the places where control tokens must not be recognised.
struct Rendered {
    text: String,
    blocked: Vec<usize>,
}

impl<'a> Encoder<'a> {
    /// The tokenizer. Errors: there is none.
    pub fn tokenizer(&self) -> Result<&'a Tokenizer> {
        self.tokenizer.ok_or_else(|| {
            Error::input("no tokenizer", "the model has no tokenizer, so text cannot be used")
                .with_hint("give data of the form {\"input_ids\": [...]}")
        })
    }

    fn template(&self) -> Result<&'a ChatTemplate> {
        self.template.ok_or_else(|| {
            Error::input("no template", "the model has no chat template, so conversations cannot be used")
                .with_hint("give data of the form {\"prompt\": .., \"completion\": ..} or {\"text\": ..}")
        })
    }

    /// A conversation as an example: the assistant's turns are trained, each from the end of the generation prompt to
    /// its end-of-turn token. Errors: no assistant's turn; a template that fails or rewrites earlier messages.
    pub fn chat(&self, turns: &[Turn], tools: Option<&Value>) -> Result<Example> {
        let tokenizer = self.tokenizer()?;
        if turns.len() > MAX_MESSAGES {
            let text = format!("a conversation of {} messages, at most {MAX_MESSAGES}", turns.len());
            return Err(Error::input("too many messages", text).with_hint("split it into several examples"));
        }
        let messages: Vec<Message> = turns.iter().map(|t| t.message.clone()).collect();
        if !messages.iter().any(|m| m.role == "assistant") {
            return Err(Error::input(
                "no assistant turn",
                "the conversation has no message of the assistant",
            )
            .with_hint("a conversation is trained on what the assistant says"));
        }
        let (messages, tools, mark) = self.guard(messages, tools)?;
        let tools = tools.as_ref();
        let whole = self.render(&messages, tools, false, mark)?;
        let pieces = tokenizer.encode_blocked(&whole.text, &whole.blocked)?;
        let mut trained = vec![false; pieces.ids.len()];
        for (i, turn) in turns.iter().enumerate() {
            if turn.train && turn.message.role == "assistant" {
                let span = self.turn_span(&messages, i, tools, mark, &whole.text)?;
                train_span(tokenizer, &pieces, span, &mut trained);
            }
        }
        let mut ids = pieces.ids;
        if tokenizer.begin(&mut ids)? {
            trained.insert(0, false);
        }
        finish(ids, trained)
    }

    /// The tokens that a model is given to answer `messages`.
    pub fn chat_prompt(&self, messages: &[Message], tools: Option<&Value>) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        let (messages, tools, mark) = self.guard(messages.to_vec(), tools)?;
        let rendered = self.render(&messages, tools.as_ref(), true, mark)?;
        let mut ids = tokenizer.encode_blocked(&rendered.text, &rendered.blocked)?.ids;
        tokenizer.begin(&mut ids)?;
        Ok(ids)
    }

    /// Bytes of the whole text that message `i` adds after the generation prompt.
    fn turn_span(
        &self,
        messages: &[Message],
        i: usize,
        tools: Option<&Value>,
        mark: Option<char>,
        whole: &str,
    ) -> Result<Range<usize>> {
        let before =
            self.render(&messages[..i], tools, true, mark).map_err(|e| e.at(format!("message {i}")))?;
        let after =
            self.render(&messages[..=i], tools, false, mark).map_err(|e| e.at(format!("message {i}")))?;
        if !after.text.starts_with(&before.text) {
            let text = format!("message {i}: the template does not write it after the generation prompt");
            return Err(Error::input("template prefix", text)
                .with_hint("the template's generation prompt differs from how it writes a finished turn"));
        }
        if !whole.starts_with(&after.text) {
            let text = format!("message {i}: the template writes it differently once more messages follow");
            return Err(Error::input("template prefix", text).with_hint(
                "the template rewrites earlier turns (perhaps it strips their reasoning); set \"train\": false on \
                 this message, or make one example a turn",
            ));
        }
        Ok(before.text.len()..after.text.len())
    }

    /// Puts a mark before each text of a control token inside messages and tools, so that it is not recognised later.
    /// The mark is a Unicode noncharacter which they do not hold, and is taken out again after rendering.
    fn guard(&self, mut messages: Vec<Message>, tools: Option<&Value>) -> Result<Guarded> {
        let tokenizer = self.tokenizer()?;
        let mut tools = tools.cloned();
        let any = |test: &dyn Fn(&str) -> bool| {
            messages.iter().any(|m| test(&m.content) || m.extra.values().any(|v| any_string(v, test)))
                || tools.as_ref().is_some_and(|t| any_string(t, test))
        };
        if self.specials_in_content || !any(&|s| !tokenizer.control_starts(s).is_empty()) {
            return Ok((messages, tools, None));
        }
        let Some(mark) = ('\u{FDD0}'..='\u{FDEF}').find(|c| !any(&|s| s.contains(*c))) else {
            let text =
                "the messages hold every noncharacter U+FDD0 to U+FDEF as well as texts of control tokens";
            return Err(Error::input("noncharacters", text).with_hint("remove the noncharacters"));
        };
        let insert = |s: &mut String| {
            let starts = tokenizer.control_starts(s);
            let mut marked = String::with_capacity(s.len() + starts.len() * mark.len_utf8());
            let mut done = 0;
            for at in starts {
                marked.push_str(&s[done..at]);
                marked.push(mark);
                done = at;
            }
            marked.push_str(&s[done..]);
            *s = marked;
        };
        for m in &mut messages {
            insert(&mut m.content);
            m.extra.values_mut().for_each(|v| each_string(v, &insert));
        }
        if let Some(tools) = &mut tools {
            each_string(tools, &insert);
        }
        Ok((messages, tools, Some(mark)))
    }

    fn render(
        &self,
        messages: &[Message],
        tools: Option<&Value>,
        add_generation_prompt: bool,
        mark: Option<char>,
    ) -> Result<Rendered> {
        let text = self.template()?.render(messages, tools, add_generation_prompt)?;
        let Some(mark) = mark else { return Ok(Rendered { text, blocked: Vec::new() }) };
        let mut clean = String::with_capacity(text.len());
        let mut blocked = Vec::new();
        for (i, part) in text.split(mark).enumerate() {
            if i > 0 {
                blocked.push(clean.len());
            }
            clean.push_str(part);
        }
        Ok(Rendered { text: clean, blocked })
    }

    /// A prompt, which is not trained, and its completion, which is, with EOS where the tokenizer has one. The two are
    /// tokenised apart, so that the prompt's tokens are those of inference.
    pub fn completion(&self, prompt: &str, completion: &str) -> Result<Example> {
        let tokenizer = self.tokenizer()?;
        let mut ids = tokenizer.prompt(prompt)?;
        let answer = if prompt.is_empty() {
            tokenizer.encode(completion)
        } else {
            tokenizer.encode_continuation(completion)
        }?;
        let mut trained = vec![false; ids.len()];
        ids.extend(answer);
        end(tokenizer, &mut ids);
        trained.resize(ids.len(), true);
        finish(ids, trained)
    }

    /// A text: all tokens but the first are trained; EOS where the tokenizer has one.
    pub fn text(&self, text: &str) -> Result<Example> {
        let tokenizer = self.tokenizer()?;
        if text.is_empty() {
            return Err(Error::input("empty text", "the text is empty"));
        }
        let mut ids = tokenizer.prompt(text)?;
        end(tokenizer, &mut ids);
        let trained = vec![true; ids.len()];
        finish(ids, trained)
    }
}

/// Marks the tokens of a turn. It ends with its last end-of-turn token: what follows (a line break) is written by the
/// template, never by the model.
fn train_span(tokenizer: &Tokenizer, pieces: &Pieces, span: Range<usize>, trained: &mut [bool]) {
    let start_of = |i: usize| if i == 0 { 0 } else { pieces.ends[i - 1] };
    let inside = |i: &usize| span.contains(&start_of(*i));
    let tokens: Vec<usize> = (0..pieces.ids.len()).filter(inside).collect();
    let last = tokens.iter().rposition(|i| tokenizer.is_end_of_generation(pieces.ids[*i]));
    let count = last.map_or(tokens.len(), |l| l + 1);
    for i in &tokens[..count] {
        trained[*i] = true;
    }
}

fn end(tokenizer: &Tokenizer, ids: &mut Vec<u32>) {
    let ended = ids.last().is_some_and(|id| tokenizer.is_end_of_generation(*id));
    if let (false, Some(eos)) = (ended, tokenizer.eos()) {
        ids.push(eos);
    }
}

/// The first token has nothing before it, so it is never a target.
pub(crate) fn finish(ids: Vec<u32>, mut trained: Vec<bool>) -> Result<Example> {
    if let Some(first) = trained.first_mut() {
        *first = false;
    }
    if !trained.contains(&true) {
        return Err(Error::input("no trained tokens", "no token of this example would be trained")
            .with_hint("check that the answer is not empty and not masked"));
    }
    Ok(Example { ids, trained, place: String::new() })
}

fn any_string(v: &Value, test: &dyn Fn(&str) -> bool) -> bool {
    match v {
        Value::String(s) => test(s),
        Value::Array(a) => a.iter().any(|v| any_string(v, test)),
        Value::Object(o) => o.values().any(|v| any_string(v, test)),
        _ => false,
    }
}

fn each_string(v: &mut Value, change: &impl Fn(&mut String)) {
    match v {
        Value::String(s) => change(s),
        Value::Array(a) => a.iter_mut().for_each(|v| each_string(v, change)),
        Value::Object(o) => o.values_mut().for_each(|v| each_string(v, change)),
        _ => {}
    }
}
