//! A proof, by looking at the tables alone, that a text has at most one derivation.
//!
//! Any two options of a rule must differ at some word while both still go on: up to there they have the same items,
//! so they have read the same text, and there they cannot both fit. Then a reader who knows where an option begins
//! knows which one it is and where it ends, by induction over the rules. It also makes the options prefix-free.
//! Words are compared whole, so no letter may touch a slot: what fills it must end where a word ends.

use super::grammar::{Grammar, Item};

/// Pairs of options that this argument does not tell apart.
pub fn doubts(grammar: &Grammar) -> Vec<String> {
    let mut found = Vec::new();
    for options in &grammar.rules {
        for (at, one) in options.iter().enumerate() {
            if one.items.windows(2).any(|pair| touch(pair[0], pair[1])) {
                found.push(format!("{:?}", one.items));
            }
            for other in &options[at + 1..] {
                if !differ(grammar, &pieces(&one.items), &pieces(&other.items)) {
                    found.push(format!("{:?} {:?}", one.items, other.items));
                }
            }
        }
    }
    found
}

/// Whether two neighbours may run into one word.
fn touch(left: Item, right: Item) -> bool {
    let ends = |item, end: fn(&str) -> Option<char>| match item {
        Item::Text(text) => end(text).is_some_and(|c| c.is_ascii_alphabetic()),
        Item::Draw(_) | Item::Recall(..) => true,
    };
    ends(left, |text| text.chars().last()) && ends(right, |text| text.chars().next())
}

/// Items whose texts are single words, blanks or signs.
fn pieces(items: &[Item]) -> Vec<Item> {
    let mut out = Vec::new();
    for item in items {
        let Item::Text(mut text) = *item else {
            out.push(*item);
            continue;
        };
        while !text.is_empty() {
            let letters = text.bytes().take_while(u8::is_ascii_alphabetic).count().max(1);
            out.push(Item::Text(&text[..letters]));
            text = &text[letters..];
        }
    }
    out
}

/// Whether every text of `one` differs from every text of `other` before either ends.
fn differ(grammar: &Grammar, one: &[Item], other: &[Item]) -> bool {
    let (Some((first, one_rest)), Some((second, other_rest))) = (one.split_first(), other.split_first())
    else {
        return false;
    };
    match (first, second) {
        _ if first == second => differ(grammar, one_rest, other_rest),
        (Item::Text(_), Item::Text(_)) => true,
        (Item::Text(_), _) => {
            opened(grammar, second, other_rest).iter().all(|other| differ(grammar, one, other))
        }
        _ => opened(grammar, first, one_rest).iter().all(|one| differ(grammar, one, other)),
    }
}

/// All that a slot may become, followed by `rest`. A recall may be any option: more than is true.
fn opened(grammar: &Grammar, slot: &Item, rest: &[Item]) -> Vec<Vec<Item>> {
    let followed = |items: Vec<Item>| items.into_iter().chain(rest.iter().copied()).collect();
    match *slot {
        Item::Text(_) => Vec::new(),
        Item::Draw(rule) => {
            grammar.rules[rule].iter().map(|choice| followed(pieces(&choice.items))).collect()
        }
        Item::Recall(rule, form) => grammar.rules[rule]
            .iter()
            .map(|choice| followed(pieces(&[Item::Text(choice.forms[form])])))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::grammar::Rule;
    use super::*;

    fn doubtful(story: &'static [&'static str]) -> usize {
        let rule = |name, options| Rule { name, forms: &[], options };
        let tables = [rule("story", story), rule("hero", &["Tom", "Ann"]), rule("girl", &["Ann", "Eva"])];
        doubts(&Grammar::new(&[&tables])).len()
    }

    #[test]
    fn doubts_are_found() {
        assert_eq!(doubtful(&["{hero} ran.", "{hero} sat.", "A {girl}."]), 0);
        assert_eq!(doubtful(&["{hero} and {hero}.", "{hero} and {girl}."]), 1);
        assert_eq!(doubtful(&["{hero} ran.", "{girl} ran."]), 1);
        assert_eq!(doubtful(&["{hero} ran.", "Tom ran."]), 1);
        assert_eq!(doubtful(&["{hero} ran", "{hero} ran and sang"]), 1);
        assert_eq!(doubtful(&["run", "runner"]), 0);
        assert_eq!(doubtful(&["{hero}s ran"]), 1);
        assert_eq!(doubtful(&["{hero}{girl}"]), 1);
        assert_eq!(doubtful(&["{hero}, {girl}"]), 0);
        assert_eq!(doubtful(&["run", "run", "run away"]), 3);
    }
}
