//! The settings of the adapter.

use std::collections::BTreeMap;

use planish_base::{Error, Result};
use planish_model::{AdapterSpec, InitLora, Layers, Role};

use super::RunConfig;

impl RunConfig {
    /// The adapter that the run trains.
    ///
    /// # Errors
    /// Kind `Usage` for a number or target out of range.
    pub fn adapter(&self) -> Result<AdapterSpec> {
        let spec = AdapterSpec {
            rank: self.rank,
            alpha: self.alpha,
            rslora: self.rslora,
            targets: Role::parse_list(&self.targets)?,
            dropout: self.dropout,
            layers: self.layers.as_deref().map(Layers::parse).transpose()?,
            ranks: roles(&self.rank_pattern)?,
            alphas: roles(&self.alpha_pattern)?,
            dora: self.dora,
            init: InitLora::parse(&self.init_lora)?,
        };
        spec.check()?;
        Ok(spec)
    }

    /// The learning rate of every B as a multiple of that of A.
    pub fn b_rate(&self) -> f32 {
        self.loraplus_ratio.unwrap_or(1.0) as f32
    }

    /// Checks the settings of the adapter, and that a run that trains none has none.
    pub(super) fn check_adapter(&self) -> Result<()> {
        let adapter = self.adapter()?;
        let pissa = adapter.init == InitLora::Pissa;
        if pissa && self.init_adapter.is_some() {
            return Err(Error::usage(
                "setting",
                "init-adapter and init-lora pissa both say what to start from",
            )
            .with_hint("leave one of the two out"));
        }
        if self.full && self.init_adapter.is_some() {
            return Err(Error::usage("setting", "init-adapter starts an adapter, full trains none")
                .with_hint("merge the adapter into the base first: planish merge"));
        }
        let given = [
            ("layers", self.layers.is_some()),
            ("rank-pattern", !self.rank_pattern.is_empty()),
            ("alpha-pattern", !self.alpha_pattern.is_empty()),
            ("dora", self.dora),
            ("init-lora pissa", pissa),
            ("loraplus-ratio", self.loraplus_ratio.is_some()),
        ];
        if let Some((name, _)) = given.into_iter().find(|(_, given)| self.full && *given) {
            return Err(Error::usage("setting", format!("{name} is of an adapter, full trains none"))
                .with_hint("leave one of the two out"));
        }
        if let Some(ratio) = self.loraplus_ratio.filter(|r| !(r.is_finite() && *r > 0.0)) {
            let message = format!("loraplus-ratio is {ratio}, expected more than 0");
            return Err(
                Error::usage("setting", message).with_hint("its authors advise 16 (Hayou et al., 2024)")
            );
        }
        Ok(())
    }
}

/// A pattern by target instead of by its name.
fn roles<T: Copy>(pattern: &BTreeMap<String, T>) -> Result<BTreeMap<Role, T>> {
    pattern.iter().map(|(name, value)| Ok((Role::parse(name)?, *value))).collect()
}
