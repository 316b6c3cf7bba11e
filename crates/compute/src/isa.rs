//! Which instruction set a kernel is compiled for, and the macro that compiles one source for each.
//!
//! Kernels are written once, in plain Rust over fixed-size lane arrays with explicit `mul_add`. The same source gives
//! vector code where the instruction set allows it and the same bits everywhere.

/// An instruction set path. Bits are promised per path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// No assumption; on x86-64 fused multiply-add is then a slow library call.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
}

impl Isa {
    /// The best path this machine has.
    pub fn detect() -> Isa {
        if Isa::Avx2.is_available() { Isa::Avx2 } else { Isa::Scalar }
    }

    /// Whether this machine can run the path.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 => false,
        }
    }

    /// The name that runs record.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
        }
    }
}

/// Defines `fn name(isa: Isa, args..)` from one body, compiled for every path.
///
/// Soundness of the call into the AVX2 copy: `CpuBackend::new` refuses a path that the machine does not have, and
/// nothing else hands an `Isa` to a kernel.
macro_rules! isa_fn {
    ($(#[$doc:meta])* $vis:vis fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            match isa {
                // SAFETY: a backend with this path exists only where the machine has these features.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}
pub(crate) use isa_fn;
