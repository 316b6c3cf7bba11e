//! The CPU backend: memory, a pool of workers, and one kernel file an operation.

mod fma;
mod kernels;
mod matmul;
mod memory;
mod peak;
mod pool;
mod transpose;

use planish_base::{Error, Result};

use crate::backend::{Backend, Shared};
use crate::call::Call;
use crate::int8::Int8Rows;
use crate::isa::Isa;
use crate::view::{Home, View};
use kernels::turns::Turns;
use memory::Memory;
use pool::Pool;

/// Executes calls on this machine's cores.
pub struct CpuBackend {
    memory: Memory,
    pool: Pool,
    isa: Isa,
    rounded: Int8Rows,
    turns: Turns,
}

impl CpuBackend {
    /// A backend that works with `threads` threads on the path `isa`.
    ///
    /// # Errors
    /// Kind `Usage` for 0 threads or a path that this machine does not have.
    pub fn new(isa: Isa, threads: usize) -> Result<CpuBackend> {
        if threads == 0 || threads > 1024 {
            return Err(Error::usage("threads", format!("cannot work with {threads} threads"))
                .with_hint("give a number from 1 to the number of cores"));
        }
        if !isa.is_available() {
            return Err(Error::usage("isa", format!("this machine has no {}", isa.name())));
        }
        Ok(CpuBackend {
            memory: Memory::default(),
            pool: Pool::new(threads)?,
            isa,
            rounded: Int8Rows::default(),
            turns: Turns::default(),
        })
    }

    /// The instruction set path.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Bytes of own memory, without the arena.
    pub fn allocated_bytes(&self) -> u64 {
        self.memory.allocated_bytes()
    }

    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> u64 {
        self.memory.arena_bytes()
    }

    /// Threads that work.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}

/// What a kernel gets beside its call.
pub(crate) struct Cx<'a> {
    memory: &'a Memory,
    pool: &'a mut Pool,
    isa: Isa,
    /// Activations of a product, rounded before its tasks start; grown on demand, never shrunk.
    rounded: &'a mut Int8Rows,
    /// For tasks that add to the same sums one after the other.
    turns: &'a mut Turns,
}

impl Backend for CpuBackend {
    fn alloc(&mut self, bytes: u64) -> Result<Home> {
        self.memory.alloc(bytes)
    }

    fn import(&mut self, bytes: Shared) -> Home {
        self.memory.import(bytes)
    }

    fn free(&mut self, home: Home) {
        self.memory.free(home);
    }

    fn reserve(&mut self, arena_bytes: u64) -> Result<()> {
        self.memory.reserve(arena_bytes)
    }

    fn upload(&mut self, to: &View, bytes: &[u8]) {
        self.memory.bytes_mut(to).copy_from_slice(bytes);
    }

    fn download(&self, from: &View, bytes: &mut [u8]) {
        assert!(from.is_dense());
        bytes.copy_from_slice(self.memory.bytes(from));
    }

    fn exec(&mut self, call: &Call) {
        let cx = &mut Cx {
            memory: &self.memory,
            pool: &mut self.pool,
            isa: self.isa,
            rounded: &mut self.rounded,
            turns: &mut self.turns,
        };
        match call {
            Call::Embed(c) => kernels::embed::embed(cx, c),
            Call::EmbedBack(c) => kernels::embed::embed_back(cx, c),
            Call::RmsNorm(c) => kernels::norm::rms_norm(cx, c),
            Call::RmsNormBack(c) => kernels::norm::rms_norm_back(cx, c),
            Call::RmsNormWeightBack(c) => kernels::norm::rms_norm_weight_back(cx, c),
            Call::MatMul(c) => matmul::matmul(cx, c),
            Call::Broadcast(c) => kernels::rows::broadcast(cx, c),
            Call::ColumnSum(c) => kernels::rows::column_sum(cx, c),
            Call::Rope(c) => kernels::rope::rope(cx, c),
            Call::Attend(c) => kernels::attend::attend(cx, c),
            Call::AttendBack(c) => kernels::attend_back::attend_back(cx, c),
            Call::KvAppend(c) => kernels::kv::append(cx, c),
            Call::AttendBlocks(c) => kernels::attend::attend_blocks(cx, c),
            Call::Gated(c) => kernels::gated::gated(cx, c),
            Call::GatedBack(c) => kernels::gated::gated_back(cx, c),
            Call::Add(c) => kernels::rows::add(cx, c),
            Call::Gather(c) => kernels::rows::gather(cx, c),
            Call::Scatter(c) => kernels::rows::scatter(cx, c),
            Call::CrossEntropy(c) => kernels::cross_entropy::cross_entropy(cx, c),
            Call::TopK(c) => kernels::top::top_k(cx, c),
            Call::Dropout(c) => kernels::dropout::dropout(cx, c),
            Call::Noise(c) => kernels::noise::noise(cx, c),
            Call::RowNorms(c) => kernels::magnitude::row_norms(cx, c),
            Call::Rescale(c) => kernels::magnitude::rescale(cx, c),
            Call::MagnitudeBack(c) => kernels::magnitude::magnitude_back(cx, c),
            Call::AdamW(c) => kernels::adamw::adamw(cx, c),
            Call::Sgd(c) => kernels::sgd::sgd(cx, c),
            Call::Lion(c) => kernels::lion::lion(cx, c),
            Call::FactoredMoments(c) => kernels::adafactor::moments(cx, c),
            Call::FactoredSquares(c) => kernels::adafactor::squares(cx, c),
            Call::FactoredStep(c) => kernels::adafactor::step(cx, c),
            Call::AdamW8(c) => kernels::adamw8::adamw8(cx, c),
            Call::Momentum(c) => kernels::muon::momentum(cx, c),
            Call::Normalise(c) => kernels::muon::normalise(cx, c),
            Call::Descend(c) => kernels::muon::descend(cx, c),
            Call::Extrapolate(c) => kernels::schedule_free::extrapolate(cx, c),
            Call::ScheduleFree(c) => kernels::schedule_free::step(cx, c),
            Call::Average(c) => kernels::average::average(cx, c),
            Call::SumSquares(c) => kernels::sums::sum_squares(cx, c),
            Call::Zero(c) => kernels::rows::zero(cx, c),
        }
    }
}
