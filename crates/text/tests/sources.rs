//! Where data come from: patterns of files, corpora of token ids, the cache of tokens, packing.

// The tests write the files that the library reads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};

use common::{byte_tokenizer, byte_vocab};
use planish_text::{Dataset, Example, LengthPolicy, LoadOptions, Result, Tokenizer, load, pack};
use proptest::prelude::*;

fn write(dir: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    path
}

fn names(data: &Dataset) -> Vec<String> {
    let name = |e: &Example| Path::new(&e.place).file_name().unwrap().to_string_lossy().into_owned();
    data.examples.iter().map(name).collect()
}

#[test]
fn a_pattern_is_the_files_it_matches_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("odd [name]");
    for name in ["c.txt", "a.txt", "b.md", "sub/d.txt", "sub/deep/e.txt", ".hidden.txt", "dir.txt/f.txt"] {
        write(&root, name, b"some text");
    }
    let tokenizer = byte_tokenizer(None, None);
    let here = glob_escape(&root);
    let of = |pattern: &str| {
        load(&[here.join(pattern)], Some(&tokenizer), None, &LoadOptions::default()).map(|d| names(&d))
    };
    assert_eq!(of("*.txt").unwrap(), ["a.txt", "c.txt"]);
    assert_eq!(of("**/*.txt").unwrap(), ["a.txt", "c.txt", "f.txt", "d.txt", "e.txt"]);
    assert_eq!(of("[ab].*").unwrap(), ["a.txt", "b.md"]);
    assert_eq!(of("?.md").unwrap(), ["b.md"]);
    for wrong in ["*.jsonl", "absent/*.txt", "***", "[", "a[.txt"] {
        let e = of(wrong).unwrap_err();
        assert_eq!(e.code(), "pattern", "{wrong}: {e}");
        assert!(e.to_string().contains(wrong), "{e}");
    }
}

/// The path as a pattern that matches only itself.
fn glob_escape(path: &Path) -> PathBuf {
    path.to_string_lossy().replace("[name]", "[[]name[]]").into()
}

#[test]
fn a_file_that_is_there_is_no_pattern() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "a.txt", b"another text");
    let odd = write(dir.path(), "[a]*.txt", b"some text");
    let data = load(&[odd], Some(&byte_tokenizer(None, None)), None, &LoadOptions::default()).unwrap();
    assert_eq!(names(&data), ["[a]*.txt"]);
}

/// Little-endian ids, behind a header of this vocabulary where one is given.
fn corpus(vocab: Option<u32>, ids: &[i32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(vocab) = vocab {
        bytes.extend(b"TOYC");
        bytes.extend([1, vocab, 0].iter().flat_map(|n: &u32| n.to_le_bytes()));
    }
    bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    bytes
}

fn load_corpus(bytes: &[u8], o: &LoadOptions) -> Result<Dataset> {
    let dir = tempfile::tempdir().unwrap();
    load(&[write(dir.path(), "corpus.bin", bytes)], None, None, o)
}

fn of_vocab(vocab: usize, context: usize) -> LoadOptions {
    LoadOptions { vocab: Some(vocab), context, ..LoadOptions::default() }
}

/// Every id but the first is a target once, none of the header is read, and no policy is needed.
#[test]
fn a_corpus_is_one_document_that_the_context_cuts() {
    for n in [2usize, 3, 7, 8, 9, 100] {
        for header in [None, Some(627)] {
            let ids: Vec<i32> = (0..n as i32).map(|i| (i * 37 + 5) % 627).collect();
            let data = load_corpus(&corpus(header, &ids), &of_vocab(627, 8)).unwrap();
            let mut read = vec![data.examples[0].ids[0]];
            for e in &data.examples {
                assert!(e.ids.len() <= 8 && e.ids[0] == *read.last().unwrap());
                assert!(!e.trained[0] && e.trained[1..].iter().all(|t| *t));
                read.extend(&e.ids[1..]);
            }
            assert_eq!(read, ids.iter().map(|id| *id as u32).collect::<Vec<_>>());
            assert_eq!((data.report.trained_tokens, data.report.split), (n - 1, usize::from(n > 8)));
        }
    }
    let data = load_corpus(&corpus(Some(627), &[1; 20]), &of_vocab(627, 8)).unwrap();
    assert!(data.examples[1].place.ends_with("corpus.bin from token 7"), "{}", data.examples[1].place);
}

#[test]
fn a_broken_corpus_is_refused_with_the_byte() {
    let whole = corpus(Some(627), &[1, 2, 3]);
    let changed = |at: usize, value: u32| {
        let mut bytes = whole.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    let cases = [
        (whole[..27].to_vec(), "truncated", "byte 24: the file ends in the middle of an id"),
        (whole[..15].to_vec(), "truncated", "byte 15: the file ends within its header"),
        (whole[..5].to_vec(), "truncated", "byte 5: "),
        (whole[..16].to_vec(), "empty file", "0 token ids"),
        (whole[..20].to_vec(), "empty file", "1 token ids"),
        (changed(4, 2), "version", "byte 4: version 2, expected 1"),
        (changed(8, 628), "vocab", "byte 8: a vocabulary of 628, the model has 627"),
        (changed(8, 0), "vocab", "byte 8: a vocabulary of 0"),
        (changed(20, u32::MAX), "token id", "byte 20: token 1 is -1,"),
        (changed(24, 627), "token id", "byte 24: token 2 is 627, expected an id from 0 to below 627"),
        (corpus(None, &[5, -3]), "token id", "byte 4: token 1 is -3"),
        (corpus(None, &[5, 627]), "token id", "byte 4: token 1 is 627"),
        (vec![0; 7], "truncated", "byte 4: "),
        (Vec::new(), "empty file", "0 token ids"),
    ];
    for (bytes, code, message) in cases {
        let e = load_corpus(&bytes, &of_vocab(627, 8)).unwrap_err();
        assert_eq!(e.code(), code, "{message}: {e}");
        assert!(e.to_string().contains(message) && e.to_string().contains("corpus.bin"), "{e}");
    }
    // Without a model the header alone says which ids there are.
    let alone = LoadOptions::default();
    assert!(load_corpus(&whole, &alone).is_ok());
    assert_eq!(load_corpus(&changed(24, 627), &alone).unwrap_err().code(), "token id");
    let e = load_corpus(&whole, &of_vocab(627, 1)).unwrap_err();
    assert_eq!(e.code(), "context");
}

proptest! {
    /// Whatever the bytes, a corpus is examples or an error.
    #[test]
    fn any_bytes_are_a_corpus_or_an_error(tail in proptest::collection::vec(any::<u8>(), 0..80), header: bool) {
        let bytes = if header { [b"TOYC".to_vec(), tail].concat() } else { tail };
        if let Ok(data) = load_corpus(&bytes, &of_vocab(1 << 30, 4)) {
            prop_assert!(data.examples.iter().all(|e| e.ids.len() <= 4 && e.trained_tokens() > 0));
        }
    }

    /// Every example has one place, whole; no pack is above the context; no two packs of a window would fit in one
    /// by more than the bound of best fit: at most one of them is half empty.
    #[test]
    fn packs_hold_every_example_once(lengths in proptest::collection::vec(1usize..=64, 0..300), context in 1usize..=64) {
        let packs = pack(&lengths, context);
        let mut seen: Vec<usize> = packs.concat();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
        let size = |p: &Vec<usize>| p.iter().map(|i| lengths[*i]).sum::<usize>();
        prop_assert!(packs.iter().all(|p| p.len() == 1 || size(p) <= context));
        prop_assert!(packs.iter().all(|p| p.is_sorted()) && packs.is_sorted());
        prop_assert!(packs.iter().filter(|p| 2 * size(p) <= context).count() <= 1);
    }
}

/// Best fit decreasing by hand: 7 | 6 | 5, then 3 joins 7, 4 joins 6 and leaves nothing, 2 joins 5, 1 joins it too.
#[test]
fn packing_by_hand() {
    assert_eq!(pack(&[3, 7, 2, 5, 4, 1, 6], 10), [vec![0, 1], vec![2, 3, 5], vec![4, 6]]);
    // The tightest room, not the first: 2 goes to the 8, though the 7 came first in the data.
    assert_eq!(pack(&[7, 8, 2], 10), [vec![0], vec![1, 2]]);
    assert_eq!(pack(&[20, 4, 4], 8), [vec![0], vec![1, 2]]);
    assert!(pack(&[], 8).is_empty());
    // A pack holds examples of one window.
    assert_eq!(pack(&[1; 1001], 2000), [(0..1000).collect::<Vec<_>>(), vec![1000]]);
}

const LINES: &[u8] = b"{\"text\": \"the first\"}\n\n{\"text\": \"the second\"}\n";

struct Cached {
    dir: tempfile::TempDir,
    data: PathBuf,
}

impl Cached {
    fn new() -> Cached {
        let dir = tempfile::tempdir().unwrap();
        let data = write(dir.path(), "data.jsonl", LINES);
        Cached { dir, data }
    }

    fn load(&self, tokenizer: &Tokenizer, o: LoadOptions) -> Dataset {
        let cache = Some(self.dir.path().join("cache"));
        load(std::slice::from_ref(&self.data), Some(tokenizer), None, &LoadOptions { cache, ..o }).unwrap()
    }

    fn entries(&self) -> Vec<PathBuf> {
        let found = std::fs::read_dir(self.dir.path().join("cache")).unwrap();
        found.map(|e| e.unwrap().path()).collect()
    }
}

#[test]
fn what_the_cache_gives_is_what_was_read() {
    let place = Cached::new();
    let tokenizer = byte_tokenizer(None, Some("<|im_end|>"));
    let plain =
        load(std::slice::from_ref(&place.data), Some(&tokenizer), None, &LoadOptions::default()).unwrap();
    for _ in 0..2 {
        let data = place.load(&tokenizer, LoadOptions::default());
        assert_eq!((data.examples, data.report), (plain.examples.clone(), plain.report.clone()));
        assert!(data.warnings.is_empty());
        assert_eq!(place.entries().len(), 1);
    }
    let split = LoadOptions { context: 6, policy: LengthPolicy::Split, ..LoadOptions::default() };
    let cut = place.load(&tokenizer, split.clone());
    assert_eq!(place.entries().len(), 1, "the length policy is applied to what was kept");
    assert_eq!(
        cut.examples,
        load(std::slice::from_ref(&place.data), Some(&tokenizer), None, &split).unwrap().examples
    );
}

#[test]
fn whatever_the_tokens_depend_on_misses_the_cache() {
    let place = Cached::new();
    let tokenizer = byte_tokenizer(None, Some("<|im_end|>"));
    place.load(&tokenizer, LoadOptions::default());
    let mut changed = LINES.to_vec();
    changed[10] = b'T';
    write(place.dir.path(), "data.jsonl", &changed);
    let data = place.load(&tokenizer, LoadOptions::default());
    assert_eq!((data.examples[0].ids[1], place.entries().len()), (u32::from(b'h'), 2));
    let mut vocab = byte_vocab(None, Some("<|im_end|>"));
    vocab.tokens.push("other".into());
    vocab.kinds.push(planish_text::TokenKind::Normal);
    place.load(&Tokenizer::from_vocab(vocab).unwrap(), LoadOptions::default());
    assert_eq!(place.entries().len(), 3);
    let mut vocab = byte_vocab(None, Some("<|im_end|>"));
    (vocab.merges, vocab.tokens[256]) = (vec!["h e".into()], "he".into());
    let data = place.load(&Tokenizer::from_vocab(vocab).unwrap(), LoadOptions::default());
    assert_eq!((data.examples[0].ids[1], place.entries().len()), (256, 4));
    place.load(&tokenizer, LoadOptions { specials_in_content: true, ..LoadOptions::default() });
    assert_eq!(place.entries().len(), 5);
}

/// Every byte of an entry, changed, and every file of it, cut or gone: the data are read again, with a warning.
#[test]
fn a_damaged_cache_is_never_trusted() {
    let place = Cached::new();
    let tokenizer = byte_tokenizer(None, Some("<|im_end|>"));
    let good = place.load(&tokenizer, LoadOptions::default());
    let entry = place.entries().remove(0);
    let unused = |what: &str| {
        let data = place.load(&tokenizer, LoadOptions::default());
        assert_eq!(data.examples, good.examples, "{what}");
        let told = data.warnings.len() == 1 && data.warnings[0].contains("the cache is not used");
        assert!(told, "{what}: {:?}", data.warnings);
    };
    for file in std::fs::read_dir(&entry).unwrap().map(|e| e.unwrap().path()) {
        let bytes = std::fs::read(&file).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x20;
            std::fs::write(&file, changed).unwrap();
            unused(&format!("{} byte {at}", file.display()));
        }
        std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        unused("cut");
        std::fs::remove_file(&file).unwrap();
        unused("gone");
        std::fs::write(&file, bytes).unwrap();
    }
    assert!(place.load(&tokenizer, LoadOptions::default()).warnings.is_empty());
    // A sound entry of other data under this key.
    write(place.dir.path(), "data.jsonl", b"{\"text\": \"something else\"}");
    let other = place.load(&tokenizer, LoadOptions::default());
    let foreign = place.entries().into_iter().find(|e| *e != entry).unwrap();
    std::fs::remove_dir_all(&foreign).unwrap();
    std::fs::rename(&entry, &foreign).unwrap();
    let data = place.load(&tokenizer, LoadOptions::default());
    assert_eq!((data.examples, data.warnings.len()), (other.examples, 1));
}

/// A cache that cannot be written is no reason to stop.
#[test]
fn a_cache_that_cannot_be_written_is_a_warning() {
    let place = Cached::new();
    std::fs::write(place.dir.path().join("cache"), b"a file").unwrap();
    let data = place.load(&byte_tokenizer(None, None), LoadOptions::default());
    assert_eq!((data.examples.len(), data.warnings.len()), (2, 1));
}
