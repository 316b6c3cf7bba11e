//! What executes calls.

use std::sync::Arc;

use planish_base::Result;

use crate::call::Call;
use crate::program::Program;
use crate::view::{Home, View};

/// Bytes that somebody else owns, such as a memory-mapped file.
pub type Shared = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Memory and execution. Calls run in order; a call that has returned has been executed.
pub trait Backend {
    /// A zeroed buffer that lives until [`Backend::free`]. An error of kind `Resource` when there is no memory.
    fn alloc(&mut self, bytes: u64) -> Result<Home>;

    /// A buffer over foreign bytes, read-only for calls.
    fn import(&mut self, bytes: Shared) -> Home;

    /// Gives a buffer back; its views must not be used again.
    fn free(&mut self, home: Home);

    /// Makes the arena at least this large; its content is lost when it grows.
    fn reserve(&mut self, arena_bytes: u64) -> Result<()>;

    /// Copies bytes into a dense view.
    fn upload(&mut self, to: &View, bytes: &[u8]);

    /// Copies a dense view out.
    fn download(&self, from: &View, bytes: &mut [u8]);

    /// Executes one call.
    fn exec(&mut self, call: &Call);

    /// Executes a planned program, whose arena must have been reserved.
    fn run(&mut self, program: &Program) {
        for call in program.calls() {
            self.exec(call);
        }
    }

    /// A dense view's f32 elements.
    fn download_f32(&self, from: &View) -> Vec<f32> {
        let mut values = vec![0f32; from.elements()];
        self.download_f32_into(from, &mut values);
        values
    }

    /// As [`Backend::download_f32`] without allocating.
    fn download_f32_into(&self, from: &View, values: &mut [f32]) {
        self.download(from, bytemuck::cast_slice_mut(values));
    }

    /// A dense view's 32-bit words.
    fn download_u32(&self, from: &View) -> Vec<u32> {
        let mut values = vec![0u32; from.elements()];
        self.download(from, bytemuck::cast_slice_mut(&mut values));
        values
    }

    /// A dense view's f64 elements.
    fn download_f64(&self, from: &View) -> Vec<f64> {
        let mut values = vec![0f64; from.elements()];
        self.download(from, bytemuck::cast_slice_mut(&mut values));
        values
    }

    /// Sets a dense view's f32 elements.
    fn upload_f32(&mut self, to: &View, values: &[f32]) {
        self.upload(to, bytemuck::cast_slice(values));
    }

    /// Sets a dense view's 32-bit words.
    fn upload_u32(&mut self, to: &View, values: &[u32]) {
        self.upload(to, bytemuck::cast_slice(values));
    }
}
