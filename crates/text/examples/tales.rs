//! Prints stories of the built-in corpus, how probable each is, and the entropy of all; with `-`, what the grammar says
//! of each line of standard input instead.
//!
//! ```text
//! cargo run -p planish-text --example tales -- [STORIES [SEED]]
//! planish generate MODEL -p "" -n 100 | cargo run -p planish-text --example tales -- -
//! ```
#![allow(clippy::print_stdout)] // an example prints

use planish_text::tales::{Verdict, check, entropy, story, words};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "-") {
        for line in std::io::stdin().lines() {
            let line = line?;
            match check(&line) {
                Verdict::Whole { nats } => println!("a story of {nats:.1} nats"),
                Verdict::Begun => println!("the beginning of a story"),
                Verdict::Wrong { at } => println!("no story from byte {at}: {}", &line[at..]),
            }
        }
        return Ok(());
    }
    let number = |at: usize, usual: u64| args.get(at).map_or(Ok(usual), |arg| arg.parse());
    let (stories, seed) = (number(0, 3)?, number(1, 0)?);
    for index in 0..stories {
        let story = story(seed, index);
        if let Verdict::Whole { nats } = check(&story) {
            println!("{story}\n({nats:.1} nats)\n");
        }
    }
    let of = entropy();
    println!(
        "{} words; {:.3} nats a story, {:.3} words a story, {:.4} nats a word",
        words(),
        of.nats_per_story,
        of.words_per_story,
        of.nats_per_word()
    );
    Ok(())
}
