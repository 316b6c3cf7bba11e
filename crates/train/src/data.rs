//! The examples of a run, and which of them a step trains on: a pure function of (seed, step).

use std::ops::Range;
use std::path::PathBuf;

use planish_base::{Error, Result};
use planish_engine::Model;
use planish_text::{
    Dataset, Encoder, Example, LoadOptions, Message, WordCounts, each_text, load, order, pack, split,
};

use crate::config::{EvalSplit, RunConfig};
use crate::tales;

/// The order of a run's sequences: each epoch is a permutation of its own, and a batch may reach over its end.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Of the permutations.
    pub seed: u64,
    /// Sequences of an epoch: examples, or packs of them.
    pub examples: usize,
    /// Sequences of a step.
    pub batch_size: usize,
}

impl Order {
    /// Indices of step `s`, counted from 0.
    pub fn step(&self, s: usize) -> Vec<usize> {
        self.steps_of(s..s + 1)
    }

    /// Indices of some steps, one after the other.
    pub fn steps_of(&self, steps: Range<usize>) -> Vec<usize> {
        let all = steps.start * self.batch_size..steps.end * self.batch_size;
        let mut out = Vec::with_capacity(all.len());
        let mut current = (usize::MAX, Vec::new());
        for k in all {
            let epoch = k / self.examples;
            if current.0 != epoch {
                current = (epoch, order(self.seed, epoch as u32, self.examples));
            }
            out.push(current.1[k % self.examples]);
        }
        out
    }

    /// Steps of this many passes over the data, at least one.
    pub fn steps(&self, epochs: f64) -> usize {
        ((self.examples as f64 * epochs / self.batch_size as f64).ceil() as usize).max(1)
    }
}

/// The examples of a run.
pub(crate) struct Data {
    /// All examples that were read.
    pub dataset: Dataset,
    /// Indices of those trained on.
    pub train: Vec<usize>,
    /// The same in sequences: each alone, or packed.
    sequences: Vec<Vec<usize>>,
    /// Held-out examples: indices of the same data, or data of their own.
    eval: Eval,
    /// Longest sequence of the run.
    pub context: usize,
    /// The lowest loss that the held-out examples allow, where that is known.
    pub floor: Option<f64>,
}

enum Eval {
    Split(Vec<usize>),
    Own(Dataset),
}

impl Data {
    pub fn load(config: &RunConfig, model: &Model) -> Result<Data> {
        let context = config.context.unwrap_or(model.spec.context);
        if context > model.spec.context {
            let message = format!("context {context} is above the model's {}", model.spec.context);
            return Err(
                Error::usage("context", message).with_hint("leave --context out, or give a smaller one")
            );
        }
        let options = LoadOptions {
            context,
            policy: config.max_length_policy,
            vocab: Some(model.spec.vocab),
            cache: config.cache.clone(),
            ..LoadOptions::default()
        };
        let read =
            |paths: &[PathBuf]| load(paths, model.tokenizer.as_ref(), model.template.as_ref(), &options);
        let tales = config.data.is_empty() && config.model.is_some();
        let dataset = match tales {
            true => tales::train(config, model.tokenizer()?, &options)?,
            false => read(&config.data)?,
        };
        let n = dataset.examples.len();
        let (train, eval) = match config.eval_data.is_empty() {
            false => ((0..n).collect(), Eval::Own(read(&config.eval_data)?)),
            true if tales && config.eval_split != EvalSplit::Count(0) => {
                ((0..n).collect(), Eval::Own(tales::held_out(config, model.tokenizer()?, &options)?))
            }
            true => {
                let (train, eval) = split(config.seed, n, config.eval_split.count(n));
                (train, Eval::Split(eval))
            }
        };
        let mut data = Data { dataset, train, sequences: Vec::new(), eval, context, floor: None };
        if tales && config.eval_data.is_empty() {
            data.floor = tales::floor(config, &data.eval_examples());
        }
        let examples = || data.train_examples().into_iter().chain(data.eval_examples());
        let vocab = model.spec.vocab;
        for (e, id) in examples().flat_map(|e| e.ids.iter().map(move |id| (e, *id))) {
            if id as usize >= vocab {
                let message = format!("{}: token id {id} of a vocabulary of {vocab}", e.place);
                return Err(Error::input("token id", message));
            }
        }
        let longest = examples().map(|e| e.ids.len()).max().unwrap_or(1);
        data.context = config.context.unwrap_or(longest).max(1);
        data.sequences = data.sequences_of(config.pack);
        Ok(data)
    }

    fn sequences_of(&self, packed: bool) -> Vec<Vec<usize>> {
        if !packed {
            return self.train.iter().map(|&i| vec![i]).collect();
        }
        let lengths: Vec<usize> = self.train_examples().iter().map(|e| e.ids.len()).collect();
        let mut packs = pack(&lengths, self.context);
        packs.iter_mut().flatten().for_each(|i| *i = self.train[*i]);
        packs
    }

    /// What is trained on, in sequences.
    pub fn sequences(&self) -> Vec<Vec<&Example>> {
        self.sequences.iter().map(|s| self.sequence(s)).collect()
    }

    fn sequence(&self, indices: &[usize]) -> Vec<&Example> {
        indices.iter().map(|&i| &self.dataset.examples[i]).collect()
    }

    /// What the user should know of how the data were read.
    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        let own = match &self.eval {
            Eval::Own(d) => d.warnings.as_slice(),
            Eval::Split(_) => &[],
        };
        self.dataset.warnings.iter().chain(own)
    }

    /// What standard input held, where it was read.
    pub fn stdin(&mut self) -> Option<Vec<u8>> {
        let own = match &mut self.eval {
            Eval::Own(d) => d.stdin.take(),
            Eval::Split(_) => None,
        };
        self.dataset.stdin.take().or(own)
    }

    pub fn train_examples(&self) -> Vec<&Example> {
        self.train.iter().map(|&i| &self.dataset.examples[i]).collect()
    }

    pub fn eval_examples(&self) -> Vec<&Example> {
        match &self.eval {
            Eval::Split(indices) => indices.iter().map(|&i| &self.dataset.examples[i]).collect(),
            Eval::Own(d) => d.examples.iter().collect(),
        }
    }

    /// The sequences of step `s`, counted from 0.
    pub fn step(&self, order: &Order, s: usize) -> Vec<Vec<&Example>> {
        order.step(s).into_iter().map(|i| self.sequence(&self.sequences[i])).collect()
    }

    /// The first micro-batch of the run, of up to `n` sequences.
    pub fn first(&self, order: &Order, n: usize) -> Vec<Vec<&Example>> {
        let mut sequences = self.step(order, 0);
        sequences.truncate(n);
        sequences
    }

    /// The given prompt as a user's turn, else what the first held-out example (or training example) is asked.
    pub fn sample_prompt(&self, config: &RunConfig, model: &Model) -> Result<Vec<u32>> {
        let Some(tokenizer) = &model.tokenizer else { return Ok(Vec::new()) };
        if let Some(text) = &config.sample_prompt {
            return match &model.template {
                Some(template) => {
                    let encoder = Encoder {
                        tokenizer: Some(tokenizer),
                        template: Some(template),
                        ..Default::default()
                    };
                    encoder.chat_prompt(&[Message::new("user", text.as_str())], None)
                }
                None => tokenizer.prompt(text),
            };
        }
        // A new model begins with nothing: so does what it tells.
        if let Some(bos) = tokenizer.bos().filter(|_| config.model.is_some()) {
            return Ok(vec![bos]);
        }
        let example = self.eval_examples().first().copied().or(self.train_examples().first().copied());
        let Some(example) = example else { return Ok(Vec::new()) };
        // Text is trained from its first token on: then a few tokens are the prompt.
        let first_trained = example.trained.iter().position(|t| *t).unwrap_or(0);
        Ok(example.ids[..first_trained.max(8).min(example.ids.len())].to_vec())
    }
}

/// The words of the training data, for a tokenizer that is to be learned from them.
///
/// # Errors
/// `no text` for data of token ids; those of reading files.
pub(crate) fn words(config: &RunConfig) -> Result<WordCounts> {
    let mut words = WordCounts::new()?;
    if config.data.is_empty() {
        tales::texts(config).try_for_each(|(_, story)| words.add(&story))?;
    } else {
        each_text(&config.data, &LoadOptions::default(), &mut |text| words.add(text))?;
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_sees_each_example_once() {
        let order = Order { seed: 5, examples: 10, batch_size: 4 };
        let seen: Vec<usize> = (0..5).flat_map(|s| order.step(s)).collect();
        for epoch in seen.chunks(10) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        }
        assert_ne!(seen[..10], seen[10..]);
        assert_eq!(order.steps(1.0), 3);
        assert_eq!(order.steps(2.0), 5);
    }
}
