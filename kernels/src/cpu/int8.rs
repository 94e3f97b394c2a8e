//! `out = x · wᵀ` with activations of int8 and packed weights.
//!
//! * few tokens (up to [`direct_tokens`]), or weights read as bytes (Q8_0, IQ4_NL): read as packed, unpacked in registers;
//! * more tokens: [`CHUNK_BLOCKS`] blocks of a group are decoded into a scratch of 15 to 19 KiB that stays in the
//!   first-level cache, then multiplied with a chunk of tokens that stays in the second-level one.
//!
//! Invariant: both give the same bits, see [`tile`]. Cost: `rows · columns · tokens` multiply-adds; the scratch is one a
//! thread, kept between calls.

use std::{cell::RefCell, ops::Range};

use super::{aligned::AlignedBytes, shared_out::SharedOut};
use crate::{
    Isa,
    dtype::Dtype,
    packed::{PackedMatrix, geometry::BLOCK},
};

pub(crate) mod activations;
mod lanes;
mod layouts;
mod strip;
mod tile;

use activations::{ActivationBlock, BLOCK_BYTES};
use lanes::Lanes;
use layouts::{Flat, Layout, ScaledTwice, Sixteenths, Table, Unpacked};
use strip::{Piece, Strip, strip};

/// Most tokens for which unpacking in registers pays, where there is a choice. With AVX-512 four bits are unpacked by one
/// or two instructions for 64 weights: decoding them first never paid.
fn direct_tokens(isa: Isa, bits: usize) -> usize {
    if isa == Isa::Avx512 && bits == 4 { usize::MAX } else { 8 }
}

/// Blocks decoded at a time.
const CHUNK_BLOCKS: usize = 24;
/// Tokens in the widest register tile of any instruction set.
const LARGEST_TILE: usize = 8;
/// Quantised activations that a thread goes through at a time.
const TOKEN_BYTES: usize = 160 * 1024;

thread_local! {
    static SCRATCH: RefCell<AlignedBytes> = RefCell::default();
}

/// The instruction set whose int8 bodies run on a device of set `isa`: AVX-512 only with VNNI.
pub(crate) fn body_set(isa: Isa) -> Isa {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 && !(is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bw")) {
        return Isa::Avx2;
    }
    isa
}

/// As `for_isa!`, for a set that [`body_set`] gave.
macro_rules! for_body_set {
    ($isa:expr, $body:path, $args:expr, $ty:ty) => {
        crate::cpu::for_isa!("avx512f,avx512bw,avx512vnni,avx2,fma,f16c"; $isa, $body, $args, $ty)
    };
}
pub(crate) use for_body_set;

/// Blocks `from..from + x.len() / 32` of the quantised activations.
pub(crate) struct QuantiseTask<'a> {
    /// Whole blocks.
    pub(crate) x: &'a [f32],
    pub(crate) from: usize,
    pub(crate) out: &'a SharedOut<'a, ActivationBlock>,
}

/// # Safety
/// As for [`Lanes`]; the task's blocks are its alone.
#[inline(always)]
pub(crate) unsafe fn quantise<S: Lanes>(_: S, task: &QuantiseTask<'_>) {
    // SAFETY: the caller's promise.
    let out = unsafe { task.out.part(task.from, task.x.len() / BLOCK) };
    // SAFETY: the caller's promise; as many blocks as there are of values.
    unsafe { S::quantise(task.x, out) }
}

/// One task: some groups of rows of one matrix, for all tokens.
pub(crate) struct GroupTask<'a> {
    pub(crate) weight: &'a PackedMatrix,
    /// Groups of 16 rows; at least one.
    pub(crate) groups: Range<usize>,
    /// `tokens × weight.cols / 32`, row-major; at least one token.
    pub(crate) x: &'a [ActivationBlock],
    /// `tokens × weight.rows`, row-major.
    pub(crate) out: &'a SharedOut<'a>,
    /// Added to each token's row; `weight.rows` values.
    pub(crate) bias: Option<&'a [f32]>,
}

/// Blocks to decode into a scratch.
#[derive(Clone, Copy)]
struct Fill {
    group: *const u8,
    first: usize,
    count: usize,
    to: *mut u8,
}

/// Runs a task with the bodies of `isa`, a set that [`body_set`] gave; `ops` has checked its shapes.
pub(crate) fn run_task(isa: Isa, task: &GroupTask<'_>) {
    // SAFETY: `body_set` gives only sets that the CPU has; `ops` checks shapes before it makes tasks.
    unsafe { run(isa, task) }
}

/// # Safety
/// The CPU has `isa`; the task's groups exist, `x` and `out` have the sizes named.
unsafe fn run(isa: Isa, task: &GroupTask<'_>) {
    let blocks = task.weight.cols() / BLOCK;
    let tokens = task.x.len() / blocks;
    let chunk = (TOKEN_BYTES / (blocks * BLOCK_BYTES)).max(1).next_multiple_of(LARGEST_TILE);
    let dtype = task.weight.dtype();
    let direct = matches!(dtype, Dtype::Q8_0 | Dtype::Iq4Nl) || tokens <= direct_tokens(isa, task.weight.bits());
    let mut scratch = if direct { AlignedBytes::default() } else { SCRATCH.take() };
    if !direct && scratch.bytes().is_empty() {
        // Room for the layout with most bytes, so that one scratch serves all.
        scratch = AlignedBytes::zeroed(CHUNK_BLOCKS * Unpacked::<6, 2>::BLOCK_BYTES);
    }
    let to = scratch.bytes_mut().as_mut_ptr();
    for from in (0..tokens).step_by(chunk) {
        let tokens = from..(from + chunk).min(tokens);
        for group in task.groups.clone() {
            let weights = task.weight.group(group).as_ptr();
            let ahead = if group + 1 < task.groups.end { task.weight.group(group + 1) } else { &[] };
            if direct {
                let piece = Piece { group, weights, first: 0, count: blocks };
                // SAFETY: the caller's promise.
                unsafe { as_packed(isa, dtype, &Strip { task, piece, tokens: tokens.clone(), ahead }) };
                continue;
            }
            for first in (0..blocks).step_by(CHUNK_BLOCKS) {
                let count = CHUNK_BLOCKS.min(blocks - first);
                let piece = Piece { group, weights: to, first, count };
                // SAFETY: the scratch has room for `CHUNK_BLOCKS` blocks of any layout.
                unsafe {
                    decoded(
                        isa,
                        dtype,
                        Fill { group: weights, first, count, to },
                        &Strip { task, piece, tokens: tokens.clone(), ahead: if first == 0 { ahead } else { &[] } },
                    );
                }
            }
        }
    }
    if !direct {
        SCRATCH.set(scratch);
    }
}

/// Multiplies a piece that is still packed. Each layout is a function of its own: together they would be one that the
/// compiler takes minutes over.
///
/// # Safety
/// As for [`run`].
unsafe fn as_packed(isa: Isa, dtype: Dtype, args: &Strip<'_>) {
    match dtype {
        Dtype::Q4_0 => for_body_set!(isa, strip::<_, Flat<4, 8>>, args, &Strip<'_>),
        Dtype::Q4_1 => for_body_set!(isa, strip::<_, Flat<4, 0>>, args, &Strip<'_>),
        Dtype::Q5_0 => for_body_set!(isa, strip::<_, Flat<5, 16>>, args, &Strip<'_>),
        Dtype::Q5_1 => for_body_set!(isa, strip::<_, Flat<5, 0>>, args, &Strip<'_>),
        Dtype::Q8_0 => for_body_set!(isa, strip::<_, Flat<8, 128>>, args, &Strip<'_>),
        Dtype::Q4K => for_body_set!(isa, strip::<_, ScaledTwice<4>>, args, &Strip<'_>),
        Dtype::Q5K => for_body_set!(isa, strip::<_, ScaledTwice<5>>, args, &Strip<'_>),
        Dtype::Iq4Nl => for_body_set!(isa, strip::<_, Table>, args, &Strip<'_>),
        Dtype::Q6K => for_body_set!(isa, strip::<_, Sixteenths>, args, &Strip<'_>),
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => unreachable!("invariant: a packed matrix has a packed layout"),
    }
}

/// Decodes a piece and multiplies it.
///
/// # Safety
/// As for [`run`]; the scratch has room.
unsafe fn decoded(isa: Isa, dtype: Dtype, from: Fill, args: &Strip<'_>) {
    match dtype {
        Dtype::Q4_0 => for_body_set!(isa, fill::<_, Flat<4, 8>, 4, 1>, from, Fill),
        Dtype::Q4_1 => for_body_set!(isa, fill::<_, Flat<4, 0>, 4, 1>, from, Fill),
        Dtype::Q5_0 => for_body_set!(isa, fill::<_, Flat<5, 16>, 5, 1>, from, Fill),
        Dtype::Q5_1 => for_body_set!(isa, fill::<_, Flat<5, 0>, 5, 1>, from, Fill),
        Dtype::Q4K => for_body_set!(isa, fill::<_, ScaledTwice<4>, 4, 1>, from, Fill),
        Dtype::Q5K => for_body_set!(isa, fill::<_, ScaledTwice<5>, 5, 1>, from, Fill),
        Dtype::Q6K => for_body_set!(isa, fill::<_, Sixteenths, 6, 2>, from, Fill),
        Dtype::Q8_0 | Dtype::Iq4Nl | Dtype::F32 | Dtype::F16 | Dtype::Bf16 => {
            unreachable!("invariant: these are read as packed")
        }
    }
    match args.task.weight.bits() {
        4 => for_body_set!(isa, strip::<_, Unpacked<4, 1>>, args, &Strip<'_>),
        5 => for_body_set!(isa, strip::<_, Unpacked<5, 1>>, args, &Strip<'_>),
        _ => for_body_set!(isa, strip::<_, Unpacked<6, 2>>, args, &Strip<'_>),
    }
}

/// # Safety
/// As for [`Lanes`]; the scratch has room, the group has layout `L` of `BITS` bits and `PARTS` parts.
#[inline(always)]
unsafe fn fill<S: Lanes, L: Layout, const BITS: usize, const PARTS: usize>(_: S, args: Fill) {
    for block in 0..args.count {
        // SAFETY: the caller's promise.
        unsafe {
            let to = args.to.add(block * Unpacked::<BITS, PARTS>::BLOCK_BYTES);
            Unpacked::<BITS, PARTS>::fill::<S, L>(to, L::spot(args.group, args.first + block));
        }
    }
}
