//! Parameters and inputs for the examples of [`super::OPS`].

use planish_base::TypeId;
use planish_base::rng::{Purpose, Stream};
use planish_compute::{Backend, View};

use crate::tape::Param;

/// Hands out seeded parameters and inputs on a backend and remembers them.
pub struct Example<'a> {
    backend: &'a mut dyn Backend,
    params: Vec<Param>,
}

impl<'a> Example<'a> {
    /// An example on this backend.
    pub fn new(backend: &'a mut dyn Backend) -> Self {
        Example { backend, params: Vec::new() }
    }

    /// A trainable matrix of standard normal values.
    pub fn param(&mut self, rows: usize, cols: usize) -> Param {
        let values = Self::normals(self.params.len() as u32, rows * cols);
        let view = self.buffer(rows, cols, TypeId::F32);
        self.backend.upload_f32(&view, &values);
        let param = Param { view, grad: Some(self.buffer(rows, cols, TypeId::F32)) };
        self.params.push(param);
        param
    }

    /// A constant f32 matrix.
    pub fn floats(&mut self, rows: usize, cols: usize, values: &[f32]) -> View {
        let view = self.buffer(rows, cols, TypeId::F32);
        self.backend.upload_f32(&view, values);
        view
    }

    /// A constant matrix of words.
    pub fn words(&mut self, rows: usize, cols: usize, values: &[u32]) -> View {
        let view = self.buffer(rows, cols, TypeId::I32);
        self.backend.upload_u32(&view, values);
        view
    }

    /// Standard normal values of one stream.
    pub fn normals(stream: u32, n: usize) -> Vec<f32> {
        let stream = Stream::new(1, Purpose::Init, stream);
        (0..n as u64).map(|i| stream.normal(i) as f32).collect()
    }

    /// The parameters handed out so far.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    fn buffer(&mut self, rows: usize, cols: usize, dtype: TypeId) -> View {
        let home = self.backend.alloc((rows * cols * 4) as u64).expect("examples are small");
        View::new(home, 0, rows, cols, dtype)
    }
}
