//! The forward pass stays on one screen: the budget of `model/src/block.rs` and the words that have no place in it.

use super::{Tree, Violation, tables, violation};

const PATH: &str = "crates/model/src/block.rs";
const BLOCK_LINES: usize = 40;
const SCREEN_LINES: usize = 60;

/// Configuration, element types, backends, logging: each would be a branch that belongs into data.
/// The Rust type `f32` is fine, since scales are numbers.
static FORBIDDEN: &[&str] = &[
    "cfg(",
    "cfg!",
    "DType",
    "F32",
    "F16",
    "f16",
    "BF16",
    "bf16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "CpuBackend",
    "Cpu",
    "Cuda",
    "Metal",
    "println!",
    "eprintln!",
    "tracing",
    "log::",
];

pub fn check(tree: &Tree) -> Vec<Violation> {
    let Some(source) = tree.rust(PATH) else { return Vec::new() };
    let mut found = Vec::new();
    let functions = source.functions();
    let mut lines = |name: &str| {
        let function = functions.iter().find(|f| f.name == name);
        if function.is_none() {
            found.push(violation(PATH, 0, format!("no fn {name} to hold to its budget")));
        }
        function.map_or((0, 0), |f| (f.line, f.lines))
    };
    let (at, block) = lines("block");
    let screen = block + lines("attention").1 + lines("mlp").1;
    if block > BLOCK_LINES {
        found.push(violation(PATH, at, format!("fn block has {block} lines, at most {BLOCK_LINES}")));
    }
    if screen > SCREEN_LINES {
        let what = format!("block, attention and mlp have {screen} lines, at most {SCREEN_LINES}");
        found.push(violation(PATH, at, what));
    }
    for word in FORBIDDEN.iter().copied().chain(tables::architectures(tree)) {
        let places = source.find(word).into_iter().filter(|&(at, _)| !source.in_tests(at));
        found.extend(
            places.map(|(_, line)| violation(PATH, line, format!("`{word}` has no place in the block"))),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::{tree, whats};
    use super::*;

    fn of(block: usize, attention: usize, mlp: usize, rest: &str) -> Vec<String> {
        let function = |name, lines| format!("fn {name}() {{\n{}}}\n", "    a();\n".repeat(lines - 2));
        let text =
            function("block", block) + &function("attention", attention) + &function("mlp", mlp) + rest;
        let tree = tree(&[(PATH, &text), ("crates/model/src/arch/gemma3.rs", "")]);
        whats(&check(&tree)).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn the_budget_is_inclusive() {
        assert!(of(40, 12, 8, "").is_empty());
        assert_eq!(of(41, 11, 8, ""), ["fn block has 41 lines, at most 40"]);
        assert_eq!(of(40, 12, 9, ""), ["block, attention and mlp have 61 lines, at most 60"]);
    }

    #[test]
    fn branches_that_belong_into_data_are_reported() {
        assert_eq!(of(4, 4, 4, "fn f(x: DType) {}\n"), ["`DType` has no place in the block"]);
        assert_eq!(of(4, 4, 4, "use arch::gemma3;\n"), ["`gemma3` has no place in the block"]);
        assert!(
            of(4, 4, 4, "// gemma3 and cfg(x)\n#[cfg(test)]\nmod tests { use arch::gemma3; }\n").len() <= 1
        );
    }

    #[test]
    fn a_renamed_function_does_not_escape() {
        let found = check(&tree(&[(PATH, "fn block() {}\nfn attend() {}\nfn mlp() {}\n")]));
        assert_eq!(whats(&found), ["no fn attention to hold to its budget"]);
    }
}
