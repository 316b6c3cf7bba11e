//! One sequence that grows token by token.

use planish_base::{Error, Result};
use planish_compute::call::Product;
use planish_compute::{Backend, Program, View};
use planish_model::{AdapterSet, KvCache, Pass, Ragged};
use planish_tape::{Mode, Tape};

use crate::engine::Engine;
use crate::room;

/// Tokens of a prompt that are processed at a time.
const CHUNK: usize = 256;

/// A sequence with its KV cache, and the logits of its next token.
pub struct Session<'a> {
    engine: &'a mut Engine,
    adapters: Vec<&'a AdapterSet>,
    kv: KvCache,
    /// Tokens that fit.
    capacity: usize,
    length: usize,
    /// The list of calls for one token, reused for every token.
    decode: (Program, View),
    logits: Vec<f32>,
}

impl<'a> Session<'a> {
    /// An empty sequence of up to the engine's context.
    ///
    /// # Errors
    /// Kind `Resource` without memory for the KV cache or the activations of a prompt.
    pub fn new(engine: &'a mut Engine, adapters: &[&'a AdapterSet]) -> Result<Session<'a>> {
        let context = engine.context();
        Self::of(engine, adapters, context)
    }

    /// An empty sequence of up to `context` tokens, at most the engine's.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn of(engine: &'a mut Engine, adapters: &[&'a AdapterSet], context: usize) -> Result<Session<'a>> {
        let context = context.clamp(1, engine.context());
        adapters.iter().for_each(|set| set.refresh(&mut engine.backend, &engine.params));
        let kv_bytes = KvCache::bytes(&engine.model.spec, 1, context);
        room::check(&format!("a context of {context} tokens"), kv_bytes)?;
        let kv = KvCache::new(&mut engine.backend, &engine.model.spec, 1, context)?;
        let one = Ragged { ids: &[0], positions: &[0], segments: &[[0; 4]], rows: &[0], targets: &[] };
        let decode = record(engine, adapters, &kv, &one, Product::Dot);
        let n = chunk(engine).min(context);
        let zeros = vec![0; n];
        let longest = Ragged {
            ids: &zeros,
            positions: &zeros,
            segments: &[[0, n as u32, 0, 0]],
            rows: &[0],
            targets: &[],
        };
        let prefill = record(engine, adapters, &kv, &longest, engine.precision().product());
        let arena = decode.0.arena_bytes().max(prefill.0.arena_bytes());
        if let Err(e) = engine.reserve(arena) {
            kv.free(&mut engine.backend);
            return Err(e);
        }
        let logits = vec![0.0; engine.model.spec.vocab];
        Ok(Session { engine, adapters: adapters.to_vec(), kv, capacity: context, length: 0, decode, logits })
    }

    /// Tokens so far.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing has been fed yet.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Tokens that still fit.
    pub fn room(&self) -> usize {
        self.capacity - self.length
    }

    /// Logits of the next token, one for each of the vocabulary.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// The model.
    pub fn engine(&self) -> &Engine {
        self.engine
    }

    /// Forgets everything from token `length` on.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Appends a prompt; afterwards [`Session::logits`] are those after its last token.
    ///
    /// # Errors
    /// `token id` outside the vocabulary; `context` when it does not fit; kind `Resource` without memory.
    pub fn prefill(&mut self, ids: &[u32]) -> Result<()> {
        if ids.len() > self.room() {
            let message =
                format!("{} tokens do not fit: {} of {} are taken", ids.len(), self.length, self.capacity);
            return Err(
                Error::input("context", message).with_hint("give a larger --context or a shorter prompt")
            );
        }
        self.engine.check_ids(ids)?;
        if ids.is_empty() && self.is_empty() {
            return Err(Error::input("prompt", "the prompt has no tokens")
                .with_hint("this model adds no beginning-of-sequence token of its own: give a text"));
        }
        for chunk in ids.chunks(chunk(self.engine)) {
            let n = chunk.len();
            let positions: Vec<u32> = (self.length..self.length + n).map(|p| p as u32).collect();
            let batch = Ragged {
                ids: chunk,
                positions: &positions,
                segments: &[[0, n as u32, self.length as u32, 0]],
                rows: &[n as u32 - 1],
                targets: &[],
            };
            let product = self.engine.precision().product();
            let (program, logits) = record(self.engine, &self.adapters, &self.kv, &batch, product);
            self.engine.run(&batch, 1.0, &program)?;
            self.length += n;
            self.read_logits(&logits);
        }
        Ok(())
    }

    /// Appends one token, without allocating.
    ///
    /// # Errors
    /// `context` when the sequence is full.
    pub fn decode(&mut self, id: u32) -> Result<()> {
        if self.room() == 0 {
            return Err(Error::input("context", format!("the context of {} tokens is full", self.length))
                .with_hint("give a larger --context"));
        }
        self.engine.check_ids(&[id])?;
        let position = self.length as u32;
        let batch = Ragged {
            ids: &[id],
            positions: &[position],
            segments: &[[0, 1, position, 0]],
            rows: &[0],
            targets: &[],
        };
        self.engine.inputs.fill(&mut self.engine.backend, &batch, 1.0);
        self.engine.backend.run(&self.decode.0);
        self.length += 1;
        let view = self.decode.1;
        self.read_logits(&view);
        Ok(())
    }

    fn read_logits(&mut self, view: &View) {
        self.engine.backend.download_f32_into(view, &mut self.logits);
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.kv.free(&mut self.engine.backend);
    }
}

/// Tokens of a prompt that this engine processes at a time.
fn chunk(engine: &Engine) -> usize {
    CHUNK.min(engine.tokens()).min(engine.context())
}

fn record(
    engine: &Engine,
    adapters: &[&AdapterSet],
    kv: &KvCache,
    batch: &Ragged,
    product: Product,
) -> (Program, View) {
    let (views, targets) = engine.inputs.views(batch);
    let mut tape = Tape::new(Mode::Infer, product);
    let mut pass = Pass::new(&mut tape, views, &engine.model.spec, &engine.params, adapters, Some(kv));
    let hidden = pass.hidden();
    let logits = pass.logits(hidden, targets.rows);
    let logits = tape.view(logits);
    let program = tape.finish();
    let logits = program.view(&logits);
    (program, logits)
}
