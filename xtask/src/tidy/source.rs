//! Just enough of Rust's grammar to find functions, test modules and words, without a parser.
//!
//! A scan blanks comments and literals first; after that braces match and a word is a word.

use std::ops::Range;

/// One Rust file.
pub struct Source {
    /// Relative to the workspace, with `/`.
    pub path: String,
    /// `text` with every comment and the inside of every literal replaced by blanks: same offsets, same lines.
    pub code: String,
    starts: Vec<usize>,
    tests: Vec<Range<usize>>,
}

/// A function with a body.
pub struct Function {
    pub name: String,
    /// Of the keyword `fn`, counted from 1.
    pub line: usize,
    /// From `fn` to the closing brace, both lines included.
    pub lines: usize,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let code = blank(text);
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let tests = test_modules(&code);
        Source { path: path.to_owned(), code, starts, tests }
    }

    /// The line of a byte offset, counted from 1.
    pub fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|&start| start <= at)
    }

    /// Lines outside `#[cfg(test)]` modules.
    pub fn own_lines(&self) -> usize {
        let tests: usize = self.tests.iter().map(|r| self.line(r.end) - self.line(r.start) + 1).sum();
        self.code.lines().count().saturating_sub(tests)
    }

    /// True inside a `#[cfg(test)]` module.
    pub fn in_tests(&self, at: usize) -> bool {
        self.tests.iter().any(|r| r.contains(&at))
    }

    /// Integration tests and test modules that have a file of their own.
    pub fn is_test_file(&self) -> bool {
        let mut parts = self.path.split('/').rev();
        parts.next() == Some("tests.rs") || parts.any(|folder| folder == "tests")
    }

    /// At least four fifths of the code lines are one `static` item.
    pub fn is_table(&self) -> bool {
        let filled = |text: &str| text.lines().filter(|line| !line.trim().is_empty()).count();
        let longest = words(&self.code, "static")
            .filter(|&at| !self.code[..at].ends_with('\''))
            .filter_map(|at| item_end(&self.code, at).map(|end| filled(&self.code[at..end])))
            .max()
            .unwrap_or(0);
        longest * 5 >= filled(&self.code) * 4 && longest > 0
    }

    /// Functions with a body outside test modules, in file order. A function inside another counts for both.
    pub fn functions(&self) -> Vec<Function> {
        words(&self.code, "fn")
            .filter(|&at| !self.in_tests(at))
            .filter_map(|at| {
                let after = self.code[at + 2..].trim_start();
                let name: String = after.chars().take_while(|&c| is_word(c)).collect();
                let open = body(&self.code, at)?;
                let close = closing(&self.code, open)?;
                let line = self.line(at);
                (!name.is_empty()).then(|| Function { name, line, lines: self.line(close) - line + 1 })
            })
            .collect()
    }

    /// Where `word` stands alone in the code, with its line.
    pub fn find(&self, word: &str) -> Vec<(usize, usize)> {
        words(&self.code, word).map(|at| (at, self.line(at))).collect()
    }
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Offsets of `word` that are not part of a longer word. `word` may end in punctuation (`cfg(`).
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        let open_end = word.ends_with(|c: char| !is_word(c));
        !before.is_some_and(is_word) && (open_end || !after.is_some_and(is_word))
    })
}

/// The brace that opens the body of the function whose `fn` is at `at`; none for a declaration or a pointer type.
fn body(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (i, c) in code[at..].char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.checked_sub(1)?,
            '{' if depth == 0 => return Some(at + i),
            ';' | '}' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The brace that closes the one at `open`.
pub fn closing(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (i, c) in code[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(open + i);
                }
            }
            _ => {}
        }
    }
    None
}

/// Past the `;` that ends the item at `at`.
fn item_end(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0i32;
    for (i, c) in code[at..].char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ';' if depth == 0 => return Some(at + i + 1),
            _ => {}
        }
        if depth < 0 {
            return None;
        }
    }
    None
}

fn test_modules(code: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for start in ["#[cfg(test)]", "#[cfg(all(test"].iter().flat_map(|head| code.match_indices(head)) {
        let start = start.0;
        let Some(attribute) = code[start..].find(']').map(|i| start + i + 1) else { continue };
        // Further attributes may stand between the `cfg` and the module.
        let Some(open) = code[attribute..].find(['{', ';']).map(|i| attribute + i) else { continue };
        let is_module = words(&code[attribute..open], "mod").next().is_some();
        if is_module && code[open..].starts_with('{') {
            found.extend(closing(code, open).map(|end| start..end));
        }
    }
    found
}

/// Replaces comments and literals by blanks, byte for byte, and keeps line ends.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut i = 0;
    while i < bytes.len() {
        let end = skip(bytes, i);
        if end > i {
            for byte in &mut out[i..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
            i = end;
        } else {
            i += 1;
        }
    }
    // Only whole comments and literals were replaced, so no character was cut.
    String::from_utf8(out).unwrap_or_default()
}

/// The end of the comment or literal that starts at `i`, or `i`.
fn skip(b: &[u8], i: usize) -> usize {
    let rest = &b[i..];
    if rest.starts_with(b"//") {
        return i + rest.iter().position(|&c| c == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        return block_comment(b, i);
    }
    match rest[0] {
        b'"' => string(b, i),
        b'\'' => character(b, i),
        b'r' if !(i > 0 && is_word(b[i - 1] as char) && !matches!(b[i - 1], b'b' | b'c')) => raw_string(b, i),
        _ => i,
    }
}

fn block_comment(b: &[u8], start: usize) -> usize {
    let mut depth = 0usize;
    let mut i = start;
    while i < b.len() {
        if b[i..].starts_with(b"/*") {
            depth += 1;
            i += 2;
        } else if b[i..].starts_with(b"*/") {
            depth -= 1;
            i += 2;
            if depth == 0 {
                return i;
            }
        } else {
            i += 1;
        }
    }
    b.len()
}

fn string(b: &[u8], start: usize) -> usize {
    let mut i = start + 1;
    while i < b.len() {
        match b[i] {
            b'\\' => i += 2,
            b'"' => return i + 1,
            _ => i += 1,
        }
    }
    b.len()
}

/// `r"..."`, `r#"..."#`; a raw identifier (`r#fn`) is left as it is.
fn raw_string(b: &[u8], start: usize) -> usize {
    let hashes = b[start + 1..].iter().take_while(|&&c| c == b'#').count();
    let open = start + 1 + hashes;
    if b.get(open) != Some(&b'"') {
        return start;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let mut i = open + 1;
    while i < b.len() {
        if b[i..].starts_with(&close) {
            return i + close.len();
        }
        i += 1;
    }
    b.len()
}

/// A character literal; a lifetime is left as it is.
fn character(b: &[u8], start: usize) -> usize {
    let rest = &b[start + 1..];
    match rest.first() {
        Some(b'\\') => {
            // The escaped character itself may be a quote.
            let quote = rest.iter().skip(2).position(|&c| c == b'\'');
            quote.map_or(start, |at| start + 1 + 2 + at + 1)
        }
        Some(_) => {
            let width = std::str::from_utf8(&rest[..rest.len().min(4)])
                .unwrap_or_else(|e| std::str::from_utf8(&rest[..e.valid_up_to()]).unwrap_or(""))
                .chars()
                .next()
                .map_or(1, char::len_utf8);
            if rest.get(width) == Some(&b'\'') { start + 1 + width + 1 } else { start }
        }
        None => start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new("crates/base/src/x.rs", text)
    }

    #[test]
    fn literals_and_comments_are_blank_and_lines_stay() {
        let text = "let a = \"fn x() {\"; // fn y() {\nlet b = '{'; /* { /* { */ */\nlet c = r#\"}\" }\"#;\nlet d = '\\'';\n";
        let code = blank(text);
        assert_eq!(code.len(), text.len());
        assert!(!code.contains(['{', '}', '"']), "{code}");
        assert_eq!(code.lines().count(), 4);
        assert!(code.contains("let d =") && code.ends_with(";\n"));
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_code() {
        let text = "fn f<'a>(x: &'a str, r#type: u8) -> &'a str { x }";
        assert_eq!(blank(text), text);
        assert_eq!(blank("('é', 'a, 'x')"), "(    , 'a,    )");
    }

    #[test]
    fn a_function_is_counted_from_its_keyword_to_its_brace() {
        let s = source(
            "/// text\npub fn one(\n    a: [u8; 2],\n) -> u8\nwhere\n    u8: Copy,\n{\n    a[0]\n}\nfn two() {}\n",
        );
        let found: Vec<_> = s.functions().into_iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(found, [("one".to_owned(), 2, 8), ("two".to_owned(), 10, 1)]);
    }

    #[test]
    fn declarations_and_pointer_types_are_no_functions() {
        let s = source(
            "trait T { fn a(&self) -> [u8; 3]; fn b() { } }\nstruct S { f: fn(u8) -> u8 }\ntype F = fn();\n",
        );
        let names: Vec<_> = s.functions().into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["b"]);
    }

    #[test]
    fn test_modules_are_apart() {
        let s =
            source("fn a() {\n}\n\n#[cfg(test)]\n#[allow(unused)]\nmod tests {\n    fn b() {\n    }\n}\n");
        assert_eq!(s.own_lines(), 3);
        assert_eq!(s.functions().len(), 1);
        assert!(s.in_tests(s.code.find("fn b").unwrap()));
        let s = source("#[cfg(test)]\nmod tests;\nfn a() {}\n");
        assert_eq!((s.own_lines(), s.functions().len()), (3, 1));
    }

    #[test]
    fn test_files_are_known_by_their_place() {
        let is_test = |path| Source::new(path, "").is_test_file();
        assert!(is_test("crates/store/tests/gguf.rs") && is_test("crates/store/src/gguf/tests.rs"));
        assert!(!is_test("crates/store/src/latests.rs") && !is_test("xtask/src/test.rs"));
    }

    #[test]
    fn one_long_static_is_a_table() {
        let rows = "    row(1),\n".repeat(20);
        assert!(source(&format!("use x;\npub static T: &[Row] = &[\n{rows}];\n")).is_table());
        let body = "    a();\n".repeat(20);
        assert!(
            !source(&format!("static T: [u8; 1] = [1];\nfn f() -> &'static str {{\n{body}}}\n")).is_table()
        );
        assert!(!source("").is_table());
    }

    #[test]
    fn words_stand_alone() {
        let at = |code: &str, word: &str| words(code, word).count();
        assert_eq!(at("unsafe unsafe_code x.unsafe{", "unsafe"), 2);
        assert_eq!(at("#[cfg(test)] xcfg( cfg(", "cfg("), 2);
    }
}
