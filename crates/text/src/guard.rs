//! What a chat template may be made of, so that minijinja neither recurses without end nor walks endless values: it
//! compiles an expression by recursion as deep as its chain is long, and formats a value by recursion too.

use std::collections::HashSet;

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{ErrorKind, State};
use planish_base::{Error, Result};

/// Tokens between `{{` and `}}` or `{%` and `%}`; templates of known models stay below 200.
const MAX_TAG_TOKENS: usize = 1000;
/// Lists within lists that are formatted; as deep as JSON may be.
const MAX_DEPTH: usize = 128;

/// Refuses tags that are too long, other templates, and namespaces used as values. Only a namespace can be changed
/// after it was made, so without the last no value contains itself.
pub(crate) fn check_source(source: &str, syntax: &SyntaxConfig) -> Result<()> {
    // A source that is no template at all is refused, with a better message, when it is compiled.
    let tokens: Vec<_> = tokenize(source, false, syntax.clone()).map_while(|t| t.ok()).collect();
    let ident = |i: usize| match tokens.get(i) {
        Some((Token::Ident(name), _)) => *name,
        _ => "",
    };
    let is_set = |i: usize| i > 2 && ident(i - 3) == "set" && matches!(tokens[i - 1].0, Token::Assign);
    let namespaces: HashSet<&str> =
        (0..tokens.len()).filter(|i| ident(*i) == "namespace" && is_set(*i)).map(|i| ident(i - 2)).collect();
    let mut tag = 0;
    for (i, (token, span)) in tokens.iter().enumerate() {
        let refuse = |what: &str| {
            Err(Error::input("template", format!("chat template line {}: {what}", span.start_line)))
        };
        tag = if matches!(token, Token::VariableStart | Token::BlockStart) { 0 } else { tag + 1 };
        let next = tokens.get(i + 1).map(|(t, _)| t);
        match token {
            _ if tag > MAX_TAG_TOKENS => {
                return refuse(&format!("a tag has more than {MAX_TAG_TOKENS} parts"));
            }
            Token::Ident(word @ ("import" | "include" | "extends" | "from")) if tag == 1 => {
                return refuse(&format!("`{word}` is not allowed, there are no other templates"));
            }
            Token::Ident("namespace") if !is_set(i) || !matches!(next, Some(Token::ParenOpen)) => {
                return refuse("`namespace` is allowed only in `set NAME = namespace(..)`");
            }
            Token::Ident(name)
                if namespaces.contains(name) && !matches!(next, Some(Token::Dot | Token::Assign)) =>
            {
                return refuse(&format!("the namespace `{name}` is used as a value"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Takes the fuel for formatting a value: a unit for everything inside lists and maps.
pub(crate) fn charge(state: &State, value: &Value) -> Result<(), minijinja::Error> {
    walk(state, value, 0)
}

fn walk(state: &State, value: &Value, depth: usize) -> Result<(), minijinja::Error> {
    let keyed = value.kind() == ValueKind::Map;
    if !keyed && value.kind() != ValueKind::Seq {
        return Ok(());
    }
    if depth == MAX_DEPTH {
        let text = format!("a value is nested deeper than {MAX_DEPTH}");
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, text));
    }
    for item in value.try_iter()? {
        state.consume_fuel(1)?;
        let inner = if keyed { value.get_item(&item)? } else { item };
        walk(state, &inner, depth + 1)?;
    }
    Ok(())
}
