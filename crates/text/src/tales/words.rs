//! The classes of words. No word is in two of them, so that a word says what it is, and every word is drawn often enough
//! to be learned from a few thousand stories.

use super::grammar::Rule;

macro_rules! girl {
    ($name:literal) => {
        concat!($name, "/she/her/her/She/Her/girl")
    };
}

macro_rules! boy {
    ($name:literal) => {
        concat!($name, "/he/his/him/He/His/boy")
    };
}

pub const RULES: &[Rule] = &[
    Rule { name: "hero", forms: &["he", "his", "him", "He", "His", "child"], options: HEROES },
    Rule { name: "place", forms: &[], options: PLACES },
    Rule { name: "mood", forms: &[], options: MOOD },
    Rule { name: "size", forms: &[], options: SIZE },
    Rule { name: "home", forms: &[], options: HOME },
    Rule { name: "colour", forms: &[], options: COLOUR },
    Rule { name: "thing", forms: &[], options: THING },
    Rule { name: "friend", forms: &[], options: FRIEND },
    Rule { name: "look", forms: &[], options: LOOK },
    Rule { name: "kin", forms: &[], options: KIN },
    Rule { name: "job", forms: &[], options: JOB },
    Rule { name: "weather", forms: &[], options: WEATHER },
    Rule { name: "day", forms: &[], options: DAY },
    Rule { name: "near", forms: &[], options: NEAR },
    Rule { name: "spot", forms: &[], options: SPOT },
    Rule { name: "taste", forms: &[], options: TASTE },
    Rule { name: "food", forms: &[], options: FOOD },
    Rule { name: "how", forms: &[], options: HOW },
    Rule { name: "doing", forms: &[], options: DOING },
    Rule { name: "did", forms: &[], options: DID },
    Rule { name: "went", forms: &[], options: WENT },
    Rule { name: "said", forms: &[], options: SAID },
    Rule { name: "glad", forms: &[], options: GLAD },
    Rule { name: "sad", forms: &[], options: SAD },
    Rule { name: "number", forms: &[], options: NUMBER },
    Rule { name: "virtue", forms: &[], options: VIRTUE },
    Rule { name: "wealth", forms: &[], options: WEALTH },
];

#[rustfmt::skip]
const HEROES: &[&str] = &[
    girl!("Anna"), girl!("Clara"), girl!("Dora"), girl!("Ella"), girl!("Greta"), girl!("Hanna"),
    girl!("Ida"), girl!("Julia"), girl!("Maya"), girl!("Nora"), girl!("Olga"), girl!("Vera"),
    boy!("Adam"), boy!("Ben"), boy!("Carl"), boy!("David"), boy!("Felix"), boy!("Hugo"),
    boy!("Jonas"), boy!("Leo"), boy!("Milo"), boy!("Oscar"), boy!("Peter"), boy!("Tom"),
];

#[rustfmt::skip]
const PLACES: &[&str] = &[
    "forest", "meadow", "garden", "cave", "desert", "valley", "jungle", "orchard",
    "park", "swamp", "barn", "library", "museum", "vineyard", "stable", "quarry",
    "canyon", "bakery", "kitchen",
    "hill", "mountain", "beach", "island", "bridge", "field", "road", "cliff",
    "shore", "roof",
    "river", "lake", "pond", "waterfall", "well", "fountain", "sea",
    "market", "station", "school", "zoo", "windmill", "church", "playground",
];

// All that may follow `a` begins with a consonant.
#[rustfmt::skip]
const MOOD: &[&str] = &[
    "brave", "kind", "shy", "cheerful", "clever", "gentle", "merry", "curious", "polite", "patient",
    "careful", "lively", "proud", "funny", "helpful", "bold", "bright", "calm", "playful", "thoughtful",
    "tidy", "noisy", "stubborn", "dreamy", "lucky", "modest", "loyal", "cautious", "restless", "witty",
    "daring", "friendly", "jolly", "sensible", "forgetful",
];

#[rustfmt::skip]
const SIZE: &[&str] = &[
    "small", "tiny", "little", "pretty", "dusty", "snowy", "windy", "busy", "sleepy", "crooked", "cozy",
    "wooden", "narrow", "tall", "wide", "lovely", "peaceful", "distant", "humble", "grand", "famous",
    "hidden", "quaint",
];

#[rustfmt::skip]
const HOME: &[&str] = &[
    "village", "town", "cottage", "castle", "farmhouse", "house", "city", "cabin", "tower", "mill",
    "harbor", "lighthouse", "palace", "tent", "hut", "mansion", "fortress", "treehouse",
];

#[rustfmt::skip]
const COLOUR: &[&str] = &[
    "red", "blue", "green", "yellow", "golden", "silver", "purple", "pink", "black", "white", "brown",
    "gray", "scarlet", "violet", "striped", "spotted", "shiny", "rusty", "painted", "checkered", "broken",
    "magic",
];

#[rustfmt::skip]
const THING: &[&str] = &[
    "kite", "ball", "drum", "lamp", "bell", "book", "hat", "key", "map", "doll", "cup", "ring",
    "scarf", "boat", "basket", "flute", "mirror", "marble", "crown", "lantern", "box", "compass",
    "wagon", "candle",
];

#[rustfmt::skip]
const FRIEND: &[&str] = &[
    "fox", "rabbit", "bear", "frog", "mouse", "deer", "cat", "dog", "pig", "goat", "sheep", "cow",
    "donkey", "duck", "hen", "turtle", "snail", "squirrel", "hedgehog", "otter", "beaver", "monkey",
    "parrot", "camel",
];

#[rustfmt::skip]
const LOOK: &[&str] = &[
    "dainty", "tired", "fluffy", "skinny", "round", "fat", "lonely", "muddy", "wet", "hungry", "thirsty",
    "grumpy", "nervous", "wise", "slow", "giant", "limping", "dizzy", "furry", "pale", "strange", "lazy",
    "weary", "silly", "handsome", "graceful",
];

#[rustfmt::skip]
const KIN: &[&str] = &[
    "mother", "father", "sister", "brother", "grandmother", "grandfather", "aunt", "uncle", "cousin",
    "neighbor", "teacher", "nephew", "niece", "godmother",
];

#[rustfmt::skip]
const JOB: &[&str] = &[
    "baker", "farmer", "miller", "tailor", "sailor", "doctor", "painter", "king", "queen", "prince",
    "knight", "cook", "fisherman", "gardener", "postman", "carpenter", "shepherd", "judge", "mayor",
    "librarian", "butcher", "weaver", "potter", "barber", "clown", "pilot",
];

#[rustfmt::skip]
const WEATHER: &[&str] = &[
    "sunny", "rainy", "foggy", "stormy", "cloudy", "chilly", "frosty", "misty", "hot", "warm", "cool",
    "dark", "dry", "gloomy", "mild", "breezy", "hazy", "clear",
];

#[rustfmt::skip]
const DAY: &[&str] = &[
    "morning", "afternoon", "evening", "night", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday",
    "Saturday", "Sunday",
];

#[rustfmt::skip]
const NEAR: &[&str] = &[
    "under", "behind", "beside", "near", "below", "above",
];

#[rustfmt::skip]
const SPOT: &[&str] = &[
    "bush", "bench", "log", "rock", "tree", "hedge", "fence", "wall", "ladder", "barrel", "cart", "sack",
    "boulder", "stump", "haystack", "crate", "statue", "mushroom", "fern", "willow", "oak", "pine", "gate",
    "door", "chimney", "staircase", "sign",
];

#[rustfmt::skip]
const TASTE: &[&str] = &[
    "sweet", "fresh", "tasty", "yummy", "delicious", "homemade", "leftover", "fancy", "simple", "splendid",
    "special", "marvelous", "wonderful", "excellent", "rare", "foreign",
];

#[rustfmt::skip]
const FOOD: &[&str] = &[
    "bread", "cheese", "honey", "soup", "cake", "jam", "milk", "tea", "porridge", "apples", "pears",
    "plums", "cherries", "berries", "carrots", "nuts", "seeds", "pancakes", "cookies", "pie", "rice",
    "corn", "grapes", "peaches", "butter", "beans", "turnips", "pudding", "noodles", "figs", "dates",
    "melon", "popcorn", "toast", "cabbage", "pumpkin",
];

#[rustfmt::skip]
const HOW: &[&str] = &[
    "slowly", "quickly", "quietly", "softly", "bravely", "gladly", "happily", "eagerly", "carefully",
    "boldly", "calmly", "cheerfully", "gently", "kindly", "loudly", "merrily", "nervously", "patiently",
    "politely", "proudly", "shyly", "silently", "sweetly", "swiftly", "warmly", "wisely", "hopefully",
    "joyfully",
];

#[rustfmt::skip]
const DOING: &[&str] = &[
    "sleeping", "singing", "dancing", "resting", "digging", "waiting", "crying", "laughing", "humming",
    "reading", "eating", "hiding", "jumping", "yawning", "snoring", "knitting", "painting", "sweeping",
    "whistling", "thinking", "dreaming", "stretching", "counting", "juggling", "shivering", "sewing",
];

#[rustfmt::skip]
const DID: &[&str] = &[
    "danced", "laughed", "giggled", "grinned", "cheered", "clapped", "hopped", "jumped", "waved", "twirled",
    "sang", "hummed", "whistled", "bowed", "chatted", "rested", "played", "joked", "nodded", "celebrated",
    "marched", "sneezed", "winked", "sighed",
];

#[rustfmt::skip]
const WENT: &[&str] = &[
    "walked", "ran", "hurried", "wandered", "strolled", "hiked", "jogged", "raced", "tiptoed", "crept",
    "skipped", "trotted", "rushed", "dashed", "roamed", "traveled",
];

#[rustfmt::skip]
const SAID: &[&str] = &[
    "said", "cried", "whispered", "shouted", "answered", "replied", "called", "murmured", "mumbled",
    "muttered", "exclaimed", "announced",
];

#[rustfmt::skip]
const GLAD: &[&str] = &[
    "happy", "glad", "pleased", "thrilled", "delighted", "grateful", "thankful", "joyful", "relieved",
    "excited", "content", "overjoyed", "satisfied", "amazed",
];

#[rustfmt::skip]
const SAD: &[&str] = &[
    "sad", "worried", "upset", "afraid", "unhappy", "miserable", "heartbroken", "puzzled", "anxious",
    "frightened", "confused", "ashamed", "bored", "homesick", "desperate", "scared", "sorrowful",
    "troubled", "helpless",
];

#[rustfmt::skip]
const NUMBER: &[&str] = &[
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve",
];

#[rustfmt::skip]
const VIRTUE: &[&str] = &[
    "kindness", "patience", "courage", "friendship", "honesty", "sharing", "trust", "love", "hope",
    "laughter", "wisdom", "mercy",
];

#[rustfmt::skip]
const WEALTH: &[&str] = &[
    "gold", "jewels", "diamonds", "pearls", "money", "rubies", "fame", "power", "riches",
];
