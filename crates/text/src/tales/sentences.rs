//! The plots and sentences of the stories.
//!
//! Every sentence that introduces somebody or something binds it in all its variants, so that later sentences can
//! rely on it: the opening binds the hero, the second sentence the thing, the meeting the
//! friend.

use super::grammar::Rule;

pub const RULES: &[Rule] = &[
    rule(
        "story",
        &[
            "{opening} {owned} {lost} {way} {meeting} {plea} {search} {ending}",
            "{opening} {owned} {lost} {way} {meeting} {search} {ending}",
            "{opening} {wish} {way} {meeting} {trouble} {help} {reward} {ending}",
            "{opening} {wish} {way} {meeting} {help} {reward} {ending}",
            "{opening} {finding} {owner} {way} {meeting} {claim} {return} {ending}",
            "{opening} {finding} {way} {meeting} {claim} {return} {ending}",
        ],
    ),
    rule(
        "opening",
        &[
            "Once upon a time a {mood} child named {hero} lived in a {size} {home}.",
            "Long ago there was a {mood} child named {hero} in a {size} {home}.",
            "Young {hero} was a {mood} {child} from a {size} {home}.",
            "In a {size} {home} lived {hero}, a {mood} {child}.",
            "Meet {hero}, a {mood} {child} from a {size} {home}.",
            "This is the story of {hero}, a {mood} {child} from a {size} {home}.",
        ],
    ),
    // A thing that is lost.
    rule(
        "owned",
        &[
            "{His} {kin} made {him} a {colour} {thing}.",
            "{His} dearest treasure was a {colour} {thing}.",
            "Every {day} {he} {did} with {his} {colour} {thing}.",
            "{He} loved {taste} {food} and {his} {colour} {thing}.",
            "{He} had a {colour} {thing} from {his} {kin}.",
            "{=hero} felt {glad} about {his} {colour} {thing}.",
        ],
    ),
    rule(
        "lost",
        &[
            "One {weather} {day} the {=thing} was gone, and {he} felt {sad}.",
            "But on a {weather} {day} the wind took the {=thing}.",
            "Then {his} {kin} {how} lost the {=thing} {near} the {spot}.",
            "{He} felt {sad} when the {=thing} got lost one {weather} {day}.",
            "Sadly, {he} lost the {=thing} {near} the {spot} one {weather} {day}.",
            "{He} dropped the {=thing} {near} the {spot} and felt {sad}.",
        ],
    ),
    rule(
        "plea",
        &[
            "\"Where is my {=thing}?\" {he} asked {how}.",
            "\"I lost my {=thing},\" {said} {=hero} {how}.",
            "{=hero} {how} told the {=friend} about the {=thing}.",
            "{He} felt {sad}, but the {=friend} {did} {how}.",
            "\"Why so {sad}, {=hero}?\" {said} the {=friend} {how}.",
            "\"Please help me,\" {said} {=hero}, and the {=friend} {did} {how}.",
        ],
    ),
    rule(
        "search",
        &[
            "Together they found the {=thing} {near} the {spot}.",
            "\"Look {near} the {spot},\" {said} the {=friend}, and there was the {=thing}.",
            "The {=friend} {how} pulled the {=thing} from {near} the {spot}.",
            "After {number} hours they found the {=thing} {near} the {spot}.",
            "For some {taste} {food} the {=friend} {how} found the {=thing}.",
            "{He} {did} {how}, for the {=thing} was there!",
        ],
    ),
    // A thing that is wished for.
    rule(
        "wish",
        &[
            "{He} wished for a {colour} {thing} and {taste} {food}.",
            "{His} {kin} felt {sad} without a {colour} {thing}.",
            "One {weather} {day} {he} dreamed of a {colour} {thing}.",
            "For {his} {kin} {he} wanted a {colour} {thing}.",
            "Every {day} {he} asked the {job} for a {colour} {thing}.",
            "{=hero} saved {number} pennies for a {colour} {thing}.",
        ],
    ),
    rule(
        "trouble",
        &[
            "It felt {sad} without its {taste} {food}.",
            "\"I lost my {taste} {food},\" {said} the {=friend} {how}.",
            "It had not slept for {number} days and felt {sad}.",
            "\"I am so {sad},\" {said} the {=friend} {how}.",
            "Its foot was stuck {near} the {spot}, and it felt {sad}.",
            "Its {kin} was gone, and the {=friend} felt {sad}.",
        ],
    ),
    rule(
        "help",
        &[
            "{=hero} shared some {taste} {food} with the {=friend}.",
            "{=hero} {did} {how} until the {=friend} felt {glad}.",
            "So {=hero} cooked {taste} {food}, and they ate {how}.",
            "{=hero} told {number} jokes until the {=friend} {did} {how}.",
            "{He} called the {job}, who helped the {=friend} {how}.",
            "\"Do not worry,\" {said} {=hero} {how} and hugged the {=friend}.",
        ],
    ),
    rule(
        "reward",
        &[
            "The {=friend} {how} gave {him} a {=thing}.",
            "The {=friend} felt {glad} and gave {=hero} a {=thing}.",
            "Then it dug up a {=thing} {near} the {spot}.",
            "\"Take my {=thing},\" {said} the {=friend} {how}.",
            "What a surprise: {near} the {spot} lay a {=thing}!",
            "{=hero} {did} {how}, for it gave {him} a {=thing}.",
        ],
    ),
    // A thing that is found.
    rule(
        "finding",
        &[
            "One {weather} {day} {he} found a {colour} {thing}.",
            "A {colour} {thing} lay {near} the {spot}.",
            "{He} saw a {colour} {thing} {near} the {spot}.",
            "On a {weather} {day} {his} {kin} found a {colour} {thing}.",
            "While {doing} {how}, {he} noticed a {colour} {thing}.",
            "{=hero} picked up a {colour} {thing} {near} the {spot}.",
        ],
    ),
    rule(
        "owner",
        &[
            "\"Whose {=thing} is this?\" {he} asked the {job} {how}.",
            "Neither the {job} nor {his} {kin} knew the {=thing}.",
            "{He} {how} showed the {=thing} to the {job} and {his} {kin}.",
            "{His} {kin} said that the {=thing} got lost one {weather} {day}.",
            "For {number} days {he} {how} asked the {job} about the {=thing}.",
            "\"Who lost this {=thing} must be {sad},\" {said} the {job} {how}.",
        ],
    ),
    rule(
        "claim",
        &[
            "\"That is my {=thing}!\" {said} the {=friend} {how}.",
            "It was {sad}, for it had lost a {=thing}.",
            "\"Is this {=thing} yours?\" {he} asked, and the {=friend} {did}.",
            "When it saw the {=thing}, it {did} {how}.",
            "{=hero} held up the {=thing}, and it {did} {how}.",
            "It had missed its {=thing} for {number} weeks.",
        ],
    ),
    rule(
        "return",
        &[
            "{=hero} gave the {=thing} back, and they shared {taste} {food}.",
            "{He} {how} gave the {=thing} back, and the {=friend} {did} {how}.",
            "To thank {=hero}, the {=friend} cooked {taste} {food}.",
            "The {=friend} {did}, and they {did} {how} all {day}.",
            "Now both felt {glad}, and they ate {taste} {food}.",
            "\"Thank you, {=hero},\" {said} the {=friend} {how}.",
        ],
    ),
    // What all plots share.
    rule(
        "way",
        &[
            "So {he} {went} {how} to the {place}.",
            "{=hero} packed {taste} {food} and {went} to the {place}.",
            "{His} {kin} {how} took {him} to the {place}.",
            "After {number} days {he} {went} to the {place}.",
            "With {taste} {food} {he} {went} {how} to the {place}.",
            "The {job} {how} led {him} to the {place}.",
        ],
    ),
    rule(
        "meeting",
        &[
            "There {he} met a {look} {friend}, {doing} {near} the {spot}.",
            "A {look} {friend} was {doing} {near} the {spot}.",
            "Right {near} the {spot} sat a {look} {friend}, {doing} {how}.",
            "Soon {he} heard a {look} {friend} {doing} {how}.",
            "Somebody was {doing} {how}: a {look} {friend}.",
            "{=hero} saw a {look} {friend} with some {taste} {food}.",
        ],
    ),
    rule(
        "ending",
        &[
            "From then on, {=hero} and the {=friend} {did} {how} every {day}.",
            "{=hero} came home {how} and felt {glad}.",
            "The {=friend} taught {=hero} that {virtue} is better than {wealth}.",
            "In the end {=hero} chose {virtue} over {wealth} every {day}.",
            "At home {=hero} {how} told {his} {kin} about the {=friend}.",
            "And the {=friend} visits {=hero} every {day}, bringing {taste} {food}.",
        ],
    ),
];

const fn rule(name: &'static str, options: &'static [&'static str]) -> Rule {
    Rule { name, forms: &[], options }
}
