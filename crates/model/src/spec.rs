//! The shape of a model, as plain data.

use planish_base::{Error, Result};
use planish_compute::call::{Activation, Heads, RopeStyle};

/// Everything about a model but its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The line of ARCHS it came from.
    pub arch: &'static str,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Longest sequence the model was made for.
    pub context: usize,
    /// The head is the embedding table.
    pub tied: bool,
    /// Width of the frozen table that the embedding is projected from while training (the projection lens); none where
    /// the embedding is `width` wide itself.
    pub lens: Option<usize>,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Rotary frequencies.
    pub rope: Rope,
    /// One entry a block.
    pub layers: Vec<Layer>,
}

/// Rotary frequencies: pair i turns by `base^(-2i/width) / factors[i]` a position.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base.
    pub base: f64,
    /// One a pair; all 1 without scaling.
    pub factors: Vec<f64>,
    /// Which elements of a head are a pair.
    pub style: RopeStyle,
}

/// The shape of one block.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Attention heads.
    pub heads: Heads,
    /// Width of the MLP.
    pub ff: usize,
    /// Its activation.
    pub act: Activation,
    /// Queries and keys are normed head by head before they are rotated (Henry et al., 2020).
    pub qk_norm: bool,
}

/// What a linear map does in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Query projection.
    Q,
    /// Key projection.
    K,
    /// Value projection.
    V,
    /// Attention output.
    O,
    /// Gate of the MLP.
    Gate,
    /// Up projection of the MLP.
    Up,
    /// Down projection of the MLP.
    Down,
    /// The embedding table: of the model, not of a block.
    Embed,
    /// The head: of the model, not of a block.
    Output,
}

/// The roles of a block, in its order.
pub const ROLES: [Role; 7] = [Role::Q, Role::K, Role::V, Role::O, Role::Gate, Role::Up, Role::Down];

/// The roles of the model's two tables, which have a row for each token.
pub const TABLES: [Role; 2] = [Role::Embed, Role::Output];

impl Role {
    /// Whether it is one of [`TABLES`].
    pub fn is_table(self) -> bool {
        TABLES.contains(&self)
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Role::Q => "q",
            Role::K => "k",
            Role::V => "v",
            Role::O => "o",
            Role::Gate => "gate",
            Role::Up => "up",
            Role::Down => "down",
            Role::Embed => "embed",
            Role::Output => "output",
        }
    }

    /// The role of this name.
    ///
    /// # Errors
    /// Kind `Usage`, with the names.
    pub fn parse(name: &str) -> Result<Role> {
        ROLES.into_iter().chain(TABLES).find(|r| r.name() == name).ok_or_else(|| {
            Error::usage("targets", format!("unknown target `{name}`")).with_hint(
                "targets are q, k, v, o, gate, up, down, or `all` for these seven, embed and output, separated by commas",
            )
        })
    }

    /// Parses `q,v`, `all` for those of a block, or `all,embed`.
    ///
    /// # Errors
    /// Kind `Usage` for an unknown name or an empty list.
    pub fn parse_list(text: &str) -> Result<Vec<Role>> {
        let mut roles = Vec::new();
        for name in text.split(',').map(str::trim) {
            match name {
                "all" => roles.extend(ROLES),
                _ => roles.push(Role::parse(name)?),
            }
        }
        roles.sort();
        roles.dedup();
        Ok(roles)
    }
}

/// A matrix of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinearId {
    /// The block; 0 for what is not of a block.
    pub layer: usize,
    /// Its place.
    pub role: Role,
}

impl std::fmt::Display for LinearId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.role.is_table() {
            true => f.write_str(self.role.name()),
            false => write!(f, "blk.{}.{}", self.layer, self.role.name()),
        }
    }
}

impl Spec {
    /// [out, in] of a matrix; [vocabulary, width] of a table.
    pub fn linear_shape(&self, id: LinearId) -> (usize, usize) {
        let l = &self.layers[id.layer];
        let (q, kv) = (l.heads.query * l.heads.width, l.heads.kv * l.heads.width);
        match id.role {
            Role::Q => (q, self.width),
            Role::K | Role::V => (kv, self.width),
            Role::O => (self.width, q),
            Role::Gate | Role::Up => (l.ff, self.width),
            Role::Down => (self.width, l.ff),
            Role::Embed | Role::Output => (self.vocab, self.width),
        }
    }

    /// Every matrix with one of these roles: block by block, then the tables.
    pub fn linears(&self, roles: &[Role]) -> Vec<LinearId> {
        let of = |layer: usize, table: bool| {
            let roles = roles.iter().filter(move |role| role.is_table() == table);
            roles.map(move |&role| LinearId { layer, role })
        };
        (0..self.layers.len()).flat_map(|layer| of(layer, false)).chain(of(0, true)).collect()
    }

    /// Every matrix that an adapter may be of.
    pub fn adaptable(&self) -> Vec<LinearId> {
        self.linears(&[&ROLES[..], &TABLES].concat())
    }

    /// Whether a tensor is never trained: the table that a lens looks at.
    pub fn is_kept(&self, gguf: &str) -> bool {
        self.lens.is_some() && gguf == "token_embd.weight"
    }

    /// Weights in the matrices and vectors.
    pub fn parameters(&self) -> u64 {
        let matrices: usize =
            self.linears(&ROLES).into_iter().map(|id| self.linear_shape(id)).map(|(o, i)| o * i).sum();
        let embedding = match self.lens {
            Some(donor) => (self.vocab + self.width) * donor + self.width,
            None => self.vocab * self.width,
        };
        let tables = embedding + if self.tied { 0 } else { self.vocab * self.width };
        let head_norms: usize = self.layers.iter().filter(|l| l.qk_norm).map(|l| 2 * l.heads.width).sum();
        (matrices + tables + (2 * self.layers.len() + 1) * self.width + head_norms) as u64
    }
}
