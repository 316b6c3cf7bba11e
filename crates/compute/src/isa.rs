//! Which instruction set a kernel is compiled for, and the macro that compiles one source for each.
//!
//! Kernels are written once, in plain Rust over fixed-size lane arrays with explicit `mul_add`. The same source gives
//! vector code where the instruction set allows it and the same bits everywhere.

/// An instruction set path, each at least as wide as the one before. Bits are promised per path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What every machine of the architecture has. On AArch64 that is NEON with fused multiply-add, and the path is
    /// called "neon"; on x86-64 fused multiply-add is then a slow library call.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI besides.
    Avx512,
    /// x86-64 with AVX-512 BF16 besides: pairs of bf16 are multiplied in one instruction.
    Avx512Bf16,
}

impl Isa {
    /// Every path, the best last.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16];

    /// The best path this machine has.
    pub fn detect() -> Isa {
        Isa::available().filter(|isa| isa.pays()).last().unwrap_or(Isa::Scalar)
    }

    /// Whether a path that the machine has is faster than the one before. AMD's cores multiply pairs of bf16
    /// (`vdpbf16ps`) at twice the rate of f32, Intel's at half of it: theirs do that in AMX.
    fn pays(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self == Isa::Avx512Bf16 {
            let id = std::arch::x86_64::__cpuid(0);
            let vendor = [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes);
            return vendor.as_flattened() == b"AuthenticAMD";
        }
        true
    }

    /// The paths this machine can run.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Whether this machine can run the path.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let (avx2, avx512, bf16) = (
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c"),
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni"),
            is_x86_feature_detected!("avx512bf16"),
        );
        #[cfg(not(target_arch = "x86_64"))]
        let (avx2, avx512, bf16) = (false, false, false);
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => avx2,
            Isa::Avx512 => avx2 && avx512,
            Isa::Avx512Bf16 => avx2 && avx512 && bf16,
        }
    }

    /// Whether products of bf16 are faster than those of f32.
    pub fn multiplies_bf16(self) -> bool {
        self == Isa::Avx512Bf16
    }

    /// Whether products of 16-bit integers are faster than those of f32.
    pub fn multiplies_int16(self) -> bool {
        self >= Isa::Avx512
    }

    /// The name that runs record.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar if cfg!(target_arch = "aarch64") => "neon",
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512-bf16",
        }
    }
}

/// Defines `fn name(isa: Isa, args..)` from one body, compiled for every path. In the body `WIDE` is whether the path has
/// AVX-512, so 32 registers of 16 floats.
///
/// Soundness of the calls into the vector copies: `CpuBackend::new` refuses a path that the machine does not have,
/// and nothing else hands an `Isa` to a kernel.
macro_rules! isa_fn {
    ($(#[$doc:meta])* $vis:vis fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body<const WIDE: bool>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body::<false>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body::<true>($($arg),*)
            }

            match isa {
                // SAFETY: a backend with this path exists only where the machine has these features.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx512 | $crate::isa::Isa::Avx512Bf16 => unsafe { avx512($($arg),*) },
                _ => body::<false>($($arg),*),
            }
        }
    };
}
pub(crate) use isa_fn;

#[cfg(all(test, target_arch = "aarch64"))]
mod tests {
    use super::Isa;

    #[test]
    fn runs_on_aarch64_record_neon() {
        assert_eq!(Isa::detect().name(), "neon");
    }
}
