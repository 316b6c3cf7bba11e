//! What an adapter is, without its numbers.

use std::collections::{BTreeMap, BTreeSet};

use planish_base::{Error, Result};

use crate::spec::{LinearId, ROLES, Role, Spec};

const MAX_RANK: usize = 4096;
/// A larger number of a block is a slip of the pen.
const MAX_LAYER: usize = 1 << 16;

/// What an adapter is, without its numbers. [`AdapterSpec::default`] adapts the seven linear maps of every block.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSpec {
    /// Rank of a pair.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f32,
    /// Scale alpha / sqrt(rank) instead of alpha / rank (Kalajdzievski, 2023).
    pub rslora: bool,
    /// Which matrices have a pair.
    pub targets: Vec<Role>,
    /// Dropout of the pair's input while training.
    pub dropout: f32,
    /// Blocks whose matrices have a pair; none: all.
    pub layers: Option<Layers>,
    /// Targets with another rank.
    pub ranks: BTreeMap<Role, usize>,
    /// Targets with another alpha.
    pub alphas: BTreeMap<Role, f32>,
    /// Train the norms of the rows of the adapted matrices apart from their directions (DoRA; Liu et al., 2024).
    pub dora: bool,
    /// What the pairs are before the first step.
    pub init: InitLora,
}

/// What pairs are before the first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InitLora {
    /// A is random, B zero (Hu et al., 2022).
    #[default]
    Zero,
    /// The singular vectors of the matrix's largest singular values, which are taken away from the matrix (PiSSA; Meng et
    /// al., 2024).
    Pissa,
}

impl InitLora {
    /// The names on the command line.
    pub const NAMES: [&str; 2] = ["zero", "pissa"];

    /// The one of this name.
    ///
    /// # Errors
    /// Kind `Usage`, with the names.
    pub fn parse(name: &str) -> Result<InitLora> {
        match name {
            "zero" => Ok(InitLora::Zero),
            "pissa" => Ok(InitLora::Pissa),
            _ => Err(Error::usage("init-lora", format!("unknown start of an adapter `{name}`"))
                .with_hint(format!("one of {}", Self::NAMES.join(", ")))),
        }
    }
}

impl Default for AdapterSpec {
    fn default() -> Self {
        AdapterSpec {
            rank: 16,
            alpha: 32.0,
            rslora: false,
            targets: ROLES.to_vec(),
            dropout: 0.0,
            layers: None,
            ranks: BTreeMap::new(),
            alphas: BTreeMap::new(),
            dora: false,
            init: InitLora::Zero,
        }
    }
}

impl AdapterSpec {
    /// The rank of this target's pairs.
    pub fn rank(&self, role: Role) -> usize {
        self.ranks.get(&role).copied().unwrap_or(self.rank)
    }

    /// The factor on B A x of this target's pairs.
    pub fn scale(&self, role: Role) -> f32 {
        let rank = self.rank(role) as f32;
        let alpha = self.alphas.get(&role).copied().unwrap_or(self.alpha);
        alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// The matrices of a model that have a pair, block by block.
    ///
    /// # Errors
    /// Kind `Usage` for a block that the model does not have.
    pub fn maps(&self, spec: &Spec) -> Result<Vec<LinearId>> {
        let maps = spec.linears(&self.targets);
        let Some(layers) = &self.layers else { return Ok(maps) };
        let (last, blocks) = (layers.last(), spec.layers.len());
        if last >= blocks {
            return Err(Error::usage("layers", format!("layers names block {last} of a model of {blocks}"))
                .with_hint(format!("blocks count from 0: give 0 to {}", blocks - 1)));
        }
        Ok(maps.into_iter().filter(|id| id.role.is_table() || layers.contains(id.layer)).collect())
    }

    /// # Errors
    /// Kind `Usage` for a rank, alpha or dropout out of range, a pattern of what is no target, and options that do not go
    /// together.
    pub fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::usage("adapter", what));
        if let Some(rank) = self.ranks.values().chain([&self.rank]).find(|r| !(1..=MAX_RANK).contains(*r)) {
            return bad(format!("rank {rank} is not from 1 to {MAX_RANK}"));
        }
        let alphas = self.alphas.values().chain([&self.alpha]);
        if let Some(alpha) = alphas.copied().find(|a| !a.is_finite() || *a <= 0.0) {
            return bad(format!("alpha {alpha} is not a positive number"));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return bad(format!("dropout {} is not in [0, 1)", self.dropout));
        }
        if self.dora && self.init == InitLora::Pissa {
            let hint = "choose one of the two: a magnitude is of the base, which PiSSA takes a part of";
            return Err(Error::usage("adapter", "dora cannot begin with init-lora pissa").with_hint(hint));
        }
        let table = self.targets.iter().find(|role| role.is_table());
        if let Some(role) = table.filter(|_| self.dora || self.init == InitLora::Pissa) {
            let name = if self.dora { "dora" } else { "init-lora pissa" };
            return Err(Error::usage(
                "adapter",
                format!("{name} does not have the target `{}`", role.name()),
            )
            .with_hint("adapt embedding and head without it, or leave them out of --targets"));
        }
        let ranks = self.ranks.keys().map(|role| ("rank-pattern", role));
        let alphas = self.alphas.keys().map(|role| ("alpha-pattern", role));
        match ranks.chain(alphas).find(|(_, role)| !self.targets.contains(role)) {
            None => Ok(()),
            Some((name, role)) => {
                let role = role.name();
                Err(Error::usage("adapter", format!("{name} names `{role}`, which is no target"))
                    .with_hint("leave it out, or name it in --targets as well"))
            }
        }
    }
}

/// Numbers of blocks, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers(BTreeSet<usize>);

impl Layers {
    /// Parses numbers and ranges, both ends included: `8-15,20`.
    ///
    /// # Errors
    /// Kind `Usage` for anything else.
    pub fn parse(text: &str) -> Result<Layers> {
        let mut layers = BTreeSet::new();
        for part in text.split(',').map(str::trim) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n < MAX_LAYER);
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => layers.extend(first..=last),
                _ => {
                    return Err(Error::usage("layers", format!("layers has `{part}`"))
                        .with_hint("expected numbers of blocks and ranges of them, as in 8-15,20"));
                }
            }
        }
        Ok(Layers(layers))
    }

    /// Whether it has this block.
    pub fn contains(&self, layer: usize) -> bool {
        self.0.contains(&layer)
    }

    /// The highest number.
    fn last(&self) -> usize {
        self.0.last().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_numbers_and_ranges() {
        let layers = Layers::parse("8-10, 20,0").unwrap();
        assert_eq!(layers.0.iter().copied().collect::<Vec<_>>(), [0, 8, 9, 10, 20]);
        for text in ["", "a", "3-1", "1-", "-3", "1,,2", "99999999", "1-99999999"] {
            let error = Layers::parse(text).unwrap_err();
            assert!(error.code() == "layers" && error.hint().is_some(), "{text}");
        }
    }

    #[test]
    fn patterns_must_name_targets_and_be_in_range() {
        let spec = |role, rank, alpha| AdapterSpec {
            targets: vec![Role::Q, Role::V],
            ranks: BTreeMap::from([(role, rank)]),
            alphas: BTreeMap::from([(Role::V, alpha)]),
            ..AdapterSpec::default()
        };
        let good = spec(Role::Q, 4, 6.0);
        good.check().unwrap();
        assert_eq!((good.rank(Role::Q), good.rank(Role::V)), (4, 16));
        assert_eq!((good.scale(Role::Q), good.scale(Role::V)), (8.0, 0.375));
        assert_eq!(AdapterSpec { rslora: true, ..good }.scale(Role::Q), 16.0);
        for bad in [spec(Role::Down, 4, 6.0), spec(Role::Q, 0, 6.0), spec(Role::Q, 4, f32::NAN)] {
            assert_eq!(bad.check().unwrap_err().code(), "adapter");
        }
    }
}
