//! The machine of the grammar: one set of tables, read three ways. It writes a story, weighs a text, and sums over all
//! stories. It knows nothing of heroes and foxes.
//!
//! A rule has a name and options, all equally likely. An option is text with slots:
//!
//! - `{rule}` draws an option of the rule and remembers which;
//! - `{=rule}` repeats the one drawn last;
//! - `{form}` repeats another form of it: the option `Tom/he/his` of a rule with the forms `he` and `his` is drawn as
//!   `Tom`, and later `{his}` is `his`.

use std::collections::BTreeSet;

use planish_base::math;

/// One rule of the tables.
pub struct Rule {
    pub name: &'static str,
    /// Names of the forms of an option after its first.
    pub forms: &'static [&'static str],
    pub options: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    Text(&'static str),
    /// Draw from the rule of this number.
    Draw(usize),
    /// Repeat what the rule of this number drew, in the form of this number.
    Recall(usize, usize),
}

/// An option, parsed.
pub struct Choice {
    pub items: Vec<Item>,
    /// What a recall repeats.
    pub forms: Vec<&'static str>,
}

/// The options of every rule; a story is drawn from the first.
pub struct Grammar {
    pub rules: Vec<Vec<Choice>>,
}

/// Expected values of one draw.
#[derive(Clone, Copy, Default)]
pub struct Expected {
    pub nats: f64,
    pub blanks: f64,
}

/// What is known of a text.
#[derive(Debug)]
pub struct Found {
    /// Probability of the story that is exactly this text.
    pub whole: f64,
    /// Probability of all stories that begin with this text and go on.
    pub begun: f64,
    /// Bytes of the longest beginning of the text that begins a story.
    pub reached: usize,
}

impl Grammar {
    /// Parses tables. They are part of the program, so a slot that names nothing is a bug and panics.
    pub fn new(tables: &[&[Rule]]) -> Self {
        let rules: Vec<&Rule> = tables.iter().flat_map(|table| table.iter()).collect();
        let parse = |option: &&'static str| {
            let forms: Vec<&str> = option.split('/').collect();
            Choice { items: parse(forms[0], &rules), forms }
        };
        Grammar { rules: rules.iter().map(|rule| rule.options.iter().map(parse).collect()).collect() }
    }

    /// Draws a story; `draw(n)` is a number below n.
    pub fn write(&self, draw: &mut dyn FnMut(usize) -> usize) -> String {
        let mut out = String::new();
        self.write_items(&[Item::Draw(0)], draw, &mut vec![0; self.rules.len()], &mut out);
        out
    }

    fn write_items(
        &self,
        items: &[Item],
        draw: &mut dyn FnMut(usize) -> usize,
        drawn: &mut [usize],
        out: &mut String,
    ) {
        for item in items {
            match *item {
                Item::Text(text) => out.push_str(text),
                Item::Recall(rule, form) => out.push_str(self.rules[rule][drawn[rule]].forms[form]),
                Item::Draw(rule) => {
                    drawn[rule] = draw(self.rules[rule].len());
                    self.write_items(&self.rules[rule][drawn[rule]].items, draw, drawn, out);
                }
            }
        }
    }

    /// Weighs a text by following every derivation that agrees with it.
    pub fn read(&self, text: &str) -> Found {
        let found = Found { whole: 0.0, begun: 0.0, reached: 0 };
        let mut reader =
            Reader { grammar: self, text: text.as_bytes(), drawn: vec![0; self.rules.len()], found };
        reader.follow(Some(&Rest { items: &[Item::Draw(0)], then: None }), 0, 1.0);
        reader.found
    }

    /// Expected values of a story. A draw adds ln n to its entropy; a recall adds nothing, and since all options are
    /// equally likely it has the mean of their blanks.
    pub fn expected(&self) -> Expected {
        self.expected_of(&[Item::Draw(0)])
    }

    fn expected_of(&self, items: &[Item]) -> Expected {
        let mut sum = Expected::default();
        for item in items {
            match *item {
                Item::Text(text) => sum.blanks += blanks(text),
                Item::Recall(rule, form) => {
                    let of_all: f64 = self.rules[rule].iter().map(|choice| blanks(choice.forms[form])).sum();
                    sum.blanks += of_all / self.rules[rule].len() as f64;
                }
                Item::Draw(rule) => {
                    let n = self.rules[rule].len() as f64;
                    sum.nats += math::ln(n);
                    for choice in &self.rules[rule] {
                        let inner = self.expected_of(&choice.items);
                        sum.nats += inner.nats / n;
                        sum.blanks += inner.blanks / n;
                    }
                }
            }
        }
        sum
    }

    /// The distinct words in lower case.
    pub fn words(&self) -> BTreeSet<String> {
        let choices = self.rules.iter().flatten();
        let texts = choices.flat_map(|choice| {
            let inner = choice.items.iter().filter_map(|item| match item {
                Item::Text(text) => Some(*text),
                Item::Draw(_) | Item::Recall(..) => None,
            });
            inner.chain(choice.forms[1..].iter().copied())
        });
        let words = texts.flat_map(|text| text.split(|c: char| !c.is_ascii_alphabetic()));
        words.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect()
    }
}

fn blanks(text: &str) -> f64 {
    text.matches(' ').count() as f64
}

/// Cuts an option at its slots.
fn parse(mut option: &'static str, rules: &[&Rule]) -> Vec<Item> {
    let mut items = Vec::new();
    while let Some((text, rest)) = option.split_once('{') {
        let (slot, rest) = rest.split_once('}').expect("a slot of the tables is closed");
        if !text.is_empty() {
            items.push(Item::Text(text));
        }
        items.push(slot_of(slot, rules));
        option = rest;
    }
    if !option.is_empty() {
        items.push(Item::Text(option));
    }
    items
}

fn slot_of(slot: &str, rules: &[&Rule]) -> Item {
    let named = |name: &str| rules.iter().position(|rule| rule.name == name);
    if let Some(name) = slot.strip_prefix('=') {
        return Item::Recall(named(name).expect("a slot of the tables names a rule"), 0);
    }
    let form = || {
        let forms_of = |rule: &&Rule| rule.forms.iter().position(|form| *form == slot);
        rules.iter().enumerate().find_map(|(at, rule)| Some(Item::Recall(at, forms_of(rule)? + 1)))
    };
    named(slot).map(Item::Draw).or_else(form).expect("a slot of the tables names a rule or a form")
}

/// What is still to come: items, then those of the option around them.
struct Rest<'a> {
    items: &'a [Item],
    then: Option<&'a Rest<'a>>,
}

/// A search for derivations. Options that disagree with the text end at their first wrong byte.
struct Reader<'a> {
    grammar: &'a Grammar,
    text: &'a [u8],
    drawn: Vec<usize>,
    found: Found,
}

impl<'a> Reader<'a> {
    /// Follows `rest` from byte `at`, where a derivation of probability `mass` has come.
    fn follow(&mut self, rest: Option<&Rest<'_>>, at: usize, mass: f64) {
        let Some(rest) = rest else { return self.end(at, mass) };
        let Some((item, items)) = rest.items.split_first() else { return self.follow(rest.then, at, mass) };
        let rest = Rest { items, then: rest.then };
        let grammar: &'a Grammar = self.grammar;
        match *item {
            Item::Text(text) => self.expect(text, &rest, at, mass),
            Item::Recall(rule, form) => {
                self.expect(grammar.rules[rule][self.drawn[rule]].forms[form], &rest, at, mass);
            }
            Item::Draw(rule) => {
                let (before, choices) = (self.drawn[rule], &grammar.rules[rule]);
                for (option, choice) in choices.iter().enumerate() {
                    self.drawn[rule] = option;
                    let inner = Rest { items: &choice.items, then: Some(&rest) };
                    self.follow(Some(&inner), at, mass / choices.len() as f64);
                }
                self.drawn[rule] = before;
            }
        }
    }

    fn expect(&mut self, expected: &str, rest: &Rest<'_>, at: usize, mass: f64) {
        let given = &self.text[at..];
        let same = given.iter().zip(expected.as_bytes()).take_while(|(a, b)| a == b).count();
        self.found.reached = self.found.reached.max(at + same);
        if same == expected.len() {
            self.follow(Some(rest), at + same, mass);
        } else if same == given.len() {
            self.found.begun += mass;
        }
    }

    fn end(&mut self, at: usize, mass: f64) {
        if at == self.text.len() {
            self.found.whole += mass;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &'static str, options: &'static [&'static str]) -> Rule {
        Rule { name, forms: &[], options }
    }

    /// Two sentences, a hero of three, a colour of two: everything can be counted by hand.
    fn small() -> Grammar {
        let hero = Rule { name: "hero", forms: &["he"], options: &["Tom/he", "Ann/she", "Old Ben/he"] };
        let colour = rule("colour", &["red", "blue"]);
        Grammar::new(&[&[
            rule("story", &["{hero} ran, and {he} sang.", "{hero} is {colour}, {=hero}."]),
            hero,
            colour,
        ]])
    }

    #[test]
    fn a_small_grammar_by_hand() {
        let grammar = small();
        let expected = grammar.expected();
        // A sentence of two, a hero of three, and in every second story a colour of two.
        assert!((expected.nats - (2f64.ln() + 3f64.ln() + 0.5 * 2f64.ln())).abs() < 1e-12);
        // Four or three blanks, and one more in a third of the stories, once or twice.
        assert!((expected.blanks - (0.5 * (4.0 + 1.0 / 3.0) + 0.5 * (3.0 + 2.0 / 3.0))).abs() < 1e-12);
        let sixth = grammar.read("Ann ran, and she sang.");
        assert!((sixth.whole - 1.0 / 6.0).abs() < 1e-12 && sixth.begun == 0.0);
        let begun = grammar.read("Old Ben is ");
        assert!((begun.begun - 1.0 / 6.0).abs() < 1e-12 && begun.whole == 0.0);
        assert_eq!(grammar.read("Ann ran, and he sang.").reached, "Ann ran, and ".len());
        assert_eq!(grammar.read("Tom is red, Tom. Tom").reached, "Tom is red, Tom.".len());
        let words = ["and", "ann", "ben", "blue", "he", "is", "old", "ran", "red", "sang", "she", "tom"];
        assert!(grammar.words().iter().eq(words.iter()));
    }

    #[test]
    fn all_that_is_written_has_all_the_mass() {
        let grammar = small();
        let mut written = BTreeSet::new();
        for number in 0..12 {
            let mut left = number;
            written.insert(grammar.write(&mut |n| {
                let drawn = left % n;
                left /= n;
                drawn
            }));
        }
        let mass: f64 = written.iter().map(|text| grammar.read(text).whole).sum();
        assert_eq!(written.len(), 9);
        assert!((mass - 1.0).abs() < 1e-12);
    }
}
