//! Keys and values of sequences that are being generated, in blocks of 64 positions.

use planish_base::{Result, TypeId};
use planish_compute::call::KV_BLOCK;
use planish_compute::{Backend, View};
use planish_tape::ops::Blocks;

use crate::spec::Spec;

/// KV blocks of all layers behind one block table.
#[derive(Clone, Debug)]
pub struct KvCache {
    table: View,
    layers: Vec<Blocks>,
    positions: usize,
}

impl KvCache {
    /// Bytes that a cache of this size takes.
    pub fn bytes(spec: &Spec, slots: usize, positions: usize) -> u64 {
        let per_position: usize = spec.layers.iter().map(|l| 2 * l.heads.kv * l.heads.width * 4).sum();
        (slots * positions.next_multiple_of(KV_BLOCK) * per_position) as u64
    }

    /// A cache for `slots` sequences of up to `positions` tokens.
    ///
    /// # Errors
    /// Kind `Resource` when there is no memory for it.
    pub fn new(backend: &mut dyn Backend, spec: &Spec, slots: usize, positions: usize) -> Result<KvCache> {
        let per_slot = positions.div_ceil(KV_BLOCK);
        let blocks = slots * per_slot;
        let home = backend.alloc((blocks * 4) as u64)?;
        let table = View::new(home, 0, slots, per_slot, TypeId::I32);
        backend.upload_u32(&table, &(0..blocks as u32).collect::<Vec<_>>());
        let mut layers = Vec::with_capacity(spec.layers.len());
        for l in &spec.layers {
            let (kv, width) = (l.heads.kv, l.heads.width);
            let bytes = (blocks * kv * width * KV_BLOCK * 4) as u64;
            let (k, v) = (backend.alloc(bytes)?, backend.alloc(bytes)?);
            layers.push(Blocks {
                table,
                k: View::new(k, 0, blocks * kv * width, KV_BLOCK, TypeId::F32),
                v: View::new(v, 0, blocks * kv * KV_BLOCK, width, TypeId::F32),
            });
        }
        Ok(KvCache { table, layers, positions: per_slot * KV_BLOCK })
    }

    /// Tokens a slot can hold.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// The blocks of one layer.
    pub fn layer(&self, i: usize) -> Blocks {
        self.layers[i]
    }

    /// Gives the memory back; the cache must not be used again.
    pub fn free(&self, backend: &mut dyn Backend) {
        backend.free(self.table.home);
        for l in &self.layers {
            backend.free(l.k.home);
            backend.free(l.v.home);
        }
    }
}
