//! Fast bodies. Each is written once over [`simd::Simd`] and compiled for every instruction set that
//! [`Isa`](crate::Isa) names; `ops` picks one at run time.
//!
//! This is one of the rooms where `unsafe` lives. The rule that makes it sound: `ops` has checked every shape before it
//! calls a body, and a body is entered only through `for_isa!`, which has asked the CPU for the instruction set.

pub(crate) mod aligned;
pub(crate) mod attention;
pub(crate) mod decode;
pub(crate) mod dot;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod int8;
pub(crate) mod limits;
pub(crate) mod matmul;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod shared_out;
pub(crate) mod simd;
pub(crate) mod store_kv;

/// Calls `$body::<S>($args)` with the vectors of `$isa`, inside a function that enables its instructions.
macro_rules! for_isa {
    ($isa:expr, $body:path, $args:expr, $ty:ty) => {
        crate::cpu::for_isa!("avx512f,avx2,fma,f16c"; $isa, $body, $args, $ty)
    };
    // With the features that the AVX-512 body needs.
    ($avx512:literal; $isa:expr, $body:path, $args:expr, $ty:ty) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2(args: $ty) {
            // SAFETY: the caller's promise, and this function enables the instructions.
            unsafe { $body(crate::cpu::simd::avx2::Avx2, args) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $avx512)]
        unsafe fn avx512(args: $ty) {
            // SAFETY: the caller's promise, and this function enables the instructions.
            unsafe { $body(crate::cpu::simd::avx512::Avx512, args) }
        }
        match $isa {
            // SAFETY: `Device` holds only instruction sets that the CPU has; shapes were checked by `ops`.
            #[cfg(target_arch = "x86_64")]
            crate::Isa::Avx512 => unsafe { avx512($args) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            crate::Isa::Avx2 => unsafe { avx2($args) },
            // SAFETY: portable vectors need no instruction set; shapes were checked by `ops`.
            _ => unsafe { $body(crate::cpu::simd::portable::Portable, $args) },
        }
    }};
}
pub(crate) use for_isa;
