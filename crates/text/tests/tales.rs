//! The built-in stories, by what they say: the grammar's tables are not seen from here, so classes and counts are
//! collected from many stories.
// Helpers outside of `#[test]` unwrap too.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::LazyLock;

use planish_base::rng::{Purpose, Stream};
use planish_text::tales::{Verdict, check, entropy, story, words};

static STORIES: LazyLock<Vec<String>> = LazyLock::new(|| (0..20_000).map(|index| story(5, index)).collect());

static SENTENCES: LazyLock<Vec<&str>> =
    LazyLock::new(|| STORIES.iter().flat_map(|story| sentences(story)).collect());

/// The words that were seen at each `_` of a pattern, in sentences that begin with it.
fn seen<const N: usize>(pattern: &str) -> [BTreeSet<&'static str>; N] {
    let mut slots = [const { BTreeSet::new() }; N];
    let pieces: Vec<&str> = pattern.split('_').collect();
    assert_eq!(pieces.len(), N + 1, "{pattern}");
    for sentence in SENTENCES.iter() {
        let mut rest = *sentence;
        let mut words = Vec::new();
        for piece in &pieces {
            let Some(after) = rest.strip_prefix(piece) else { break };
            let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
            words.push(&after[..end]);
            rest = &after[end..];
        }
        if words.len() == pieces.len() {
            slots.iter_mut().zip(words).for_each(|(slot, word)| slot.extend([word]));
        }
    }
    slots
}

/// The words that a story keeps: heroes, things, friends.
static KEPT: LazyLock<[BTreeSet<&'static str>; 3]> = LazyLock::new(|| {
    let ([heroes], [things], [friends]) = (seen("Meet _,"), seen("\"Whose _ is"), seen("And the _ visits"));
    [heroes, things, friends]
});

fn kept(word: &str) -> Option<usize> {
    KEPT.iter().position(|class| class.contains(word))
}

/// Byte ranges of the words of a text.
fn ranges(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut start = 0;
    for (end, c) in text.char_indices().chain([(text.len(), ' ')]) {
        if !c.is_ascii_alphabetic() {
            if end > start {
                found.push(start..end);
            }
            start = end + c.len_utf8();
        }
    }
    found
}

/// A sentence's stop is followed by a blank; a stop inside quotes is not.
fn sentences(story: &str) -> Vec<&str> {
    story.split(". ").flat_map(|part| part.split("! ")).collect()
}

fn nats(text: &str) -> f64 {
    match check(text) {
        Verdict::Whole { nats } => nats,
        other => panic!("{other:?}: {text}"),
    }
}

/// `text` with another word at `range`.
fn with(text: &str, range: &Range<usize>, word: &str) -> String {
    format!("{}{word}{}", &text[..range.start], &text[range.end..])
}

/// Asserts that a text in which the word at `start` was replaced by `word` leaves the grammar in that word.
fn leaves_at(text: &str, start: usize, word: &str) {
    let Verdict::Wrong { at } = check(text) else { panic!("{:?}: {text}", check(text)) };
    assert!((start..=start + word.len()).contains(&at), "{at}, not {start} ({word}): {text}");
}

#[test]
fn the_computed_entropy_is_that_of_the_stories() {
    let n = STORIES.len() as f64;
    let of = entropy();
    let nats: Vec<f64> = STORIES.iter().map(|story| nats(story)).collect();
    let counts: Vec<f64> = STORIES.iter().map(|story| story.split(' ').count() as f64).collect();
    for (values, expected) in [(nats, of.nats_per_story), (counts, of.words_per_story)] {
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
        assert!(variance > 0.1);
        assert!((mean - expected).abs() < 4.0 * (variance / n).sqrt(), "{mean} {expected} {variance}");
    }
    assert!(
        of.nats_per_word() >= 1.0
            && (of.nats_per_word() * of.words_per_story - of.nats_per_story).abs() < 1e-9
    );
}

/// A story taken apart by hand: its plot and each of its sentences is one of six, and the rest are classes, counted by
/// what was ever seen in their places.
#[test]
fn the_probability_of_a_story_is_the_product_of_its_choices() {
    let text = "Meet Tom, a brave boy from a tiny town. He saw a red kite beside the tree. So he walked slowly to \
                the river. Somebody was singing quietly: a tired fox. It had missed its kite for two weeks. \
                \"Thank you, Tom,\" said the fox gently. In the end Tom chose love over gold every Monday.";
    let [size, home, hero, mood] = seen("In a _ _ lived _, a _");
    let [_, colour, thing] = seen("_ dearest treasure was a _ _");
    let [near, spot, look, friend, doing, how] = seen("Right _ the _ sat a _ _, _ _");
    let [_, went, _, place] = seen("So _ _ _ to the _");
    let ([number], [said, _]) = (seen("After _ days"), seen("\"Please help me,\" _ _"));
    let [_, virtue, wealth, day] = seen("In the end _ chose _ over _ every _");
    let opening = [&hero, &mood, &size, &home];
    let found = [&colour, &thing, &near, &spot];
    let way = [&went, &how, &place];
    let met = [&doing, &how, &look, &friend];
    let rest = [&number, &said, &how, &virtue, &wealth, &day];
    let classes = [&opening[..], &found, &way, &met, &rest].concat();
    let expected = 8.0 * 6f64.ln() + classes.iter().map(|class| (class.len() as f64).ln()).sum::<f64>();
    assert!((nats(text) - expected).abs() < 1e-9, "{} {expected}", nats(text));
}

#[test]
fn every_beginning_of_a_story_is_begun_and_nothing_follows_its_end() {
    for story in &STORIES[..20] {
        for end in 0..story.len() {
            assert_eq!(check(&story[..end]), Verdict::Begun, "{}", &story[..end]);
        }
        for more in [" ", ".", " A", "\n"] {
            assert_eq!(check(&format!("{story}{more}")), Verdict::Wrong { at: story.len() });
        }
    }
    assert_eq!(check("Once upon a t\u{e9}a"), Verdict::Wrong { at: 13 });
    assert_eq!(check("\u{e9}"), Verdict::Wrong { at: 0 });
    assert_eq!(check(&"Once upon a time ".repeat(100_000)), Verdict::Wrong { at: 17 });
}

/// Each later mention of what a story keeps is replaced by another word of its class.
#[test]
fn a_story_that_forgets_a_word_is_wrong_there() {
    let mut replaced = 0;
    for story in &STORIES[..100] {
        let mut seen = BTreeSet::new();
        for range in ranges(story) {
            let word = &story[range.clone()];
            let Some(class) = kept(word) else { continue };
            if !seen.insert(word) {
                let other = KEPT[class].iter().rfind(|other| **other != word).unwrap();
                leaves_at(&with(story, &range, other), range.start, other);
                replaced += 1;
            }
        }
    }
    assert!(replaced > 500, "{replaced}");
}

#[test]
fn pronouns_follow_the_hero() {
    let swap = [("he", "she"), ("she", "he"), ("He", "She"), ("She", "He"), ("him", "her"), ("His", "Her")];
    let mut swapped = 0;
    for story in &STORIES[..200] {
        for range in ranges(story) {
            if let Some((_, other)) = swap.iter().find(|(word, _)| *word == &story[range.clone()]) {
                leaves_at(&with(story, &range, other), range.start, other);
                swapped += 1;
            }
        }
    }
    assert!(swapped > 300, "{swapped}");
}

#[test]
fn a_word_of_another_class_is_wrong_where_it_stands() {
    let random = Stream::new(1, Purpose::Tales, u32::MAX);
    let draw = |index: u64, n: usize| (random.u64(index) % n as u64) as usize;
    for (index, story) in STORIES[..1000].iter().enumerate() {
        let index = 3 * index as u64;
        let ranges = ranges(story);
        // The first word may be a hero of another opening.
        let range = &ranges[1..][draw(index, ranges.len() - 1)];
        let strange: Vec<_> =
            (0..KEPT.len()).filter(|class| kept(&story[range.clone()]) != Some(*class)).collect();
        let class = &KEPT[strange[draw(index + 1, strange.len())]];
        let words: Vec<_> = class.iter().filter(|word| !story.contains(**word)).collect();
        let word = words[draw(index + 2, words.len())];
        leaves_at(&with(story, range, word), range.start, word);
    }
}

#[test]
fn hero_and_thing_are_named_again_three_sentences_later() {
    let mut gaps = [0; 2];
    for story in &STORIES[..2000] {
        let sentences = sentences(story);
        assert!((7..=8).contains(&sentences.len()), "{sentences:?}");
        for (gap, class) in gaps.iter_mut().zip([0, 1]) {
            let named =
                |sentence: &&str| ranges(sentence).into_iter().any(|r| kept(&sentence[r]) == Some(class));
            let (first, last) = (sentences.iter().position(named), sentences.iter().rposition(named));
            *gap += usize::from(last.unwrap() - first.unwrap() >= 3);
        }
    }
    assert!(gaps.iter().all(|&gap| gap >= 1980), "{gaps:?}");
}

#[test]
fn stories_read_well() {
    for story in STORIES.iter() {
        assert!(story.bytes().all(|b| (b' '..=b'~').contains(&b)) && !story.contains("  "), "{story}");
        assert!(story.starts_with(|c: char| c.is_ascii_uppercase()) && story.ends_with('.'), "{story}");
        assert!((50..=90).contains(&story.split(' ').count()), "{story}");
        let words: Vec<_> = story.split(' ').collect();
        for pair in words.windows(2).filter(|pair| matches!(pair[0], "a" | "A")) {
            assert!(!pair[1].starts_with(['a', 'e', 'i', 'o', 'u']), "{pair:?}");
        }
    }
}

#[test]
fn every_word_is_seen_and_often_enough_to_be_learned() {
    let mut seen = BTreeMap::new();
    for story in STORIES.iter() {
        for range in ranges(story) {
            *seen.entry(story[range].to_ascii_lowercase()).or_insert(0) += 1;
        }
    }
    assert!(words() >= 400);
    assert_eq!(words(), seen.len());
    let rarest = seen.iter().min_by_key(|(_, count)| **count).unwrap();
    assert!(*rarest.1 >= 50 * STORIES.len() / 5000, "{rarest:?}");
}

#[test]
fn ten_thousand_stories_differ_from_each_other_and_from_another_seed() {
    let distinct: BTreeSet<_> = STORIES[..10_000].iter().collect();
    assert_eq!(distinct.len(), 10_000);
    assert!((0..100).all(|index| !distinct.contains(&story(6, index))));
}

/// The stories of a seed stay what they are: trained models and published figures rest on them.
#[test]
fn stories_are_a_function_of_seed_and_index() {
    assert_eq!(story(0, 0), FIRST);
    assert_eq!(story(5, 7), STORIES[7]);
    assert_ne!(story(0, u64::from(u32::MAX) + 1), FIRST);
    assert!(matches!(check(&story(u64::MAX, u64::MAX)), Verdict::Whole { .. }));
    // FNV-1a over a thousand stories, each followed by a line break.
    let bytes = (0..1000).flat_map(|index| (story(0, index) + "\n").into_bytes());
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
    assert_eq!(hash, HASH, "{hash:#x}");
}

const FIRST: &str = "Once upon a time a brave child named Jonas lived in a dusty castle. He wished for a black ball and \
                     excellent pie. Jonas packed fancy melon and roamed to the fountain. Soon he heard a furry \
                     parrot knitting warmly. \"Do not worry,\" called Jonas cheerfully and hugged the parrot. The \
                     parrot felt delighted and gave Jonas a ball. And the parrot visits Jonas every Wednesday, \
                     bringing fresh melon.";
const HASH: u64 = 0x718d_2b9f_3447_f95a;
