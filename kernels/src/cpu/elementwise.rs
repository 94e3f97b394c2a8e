//! Value-by-value bodies: `x += y`, SwiGLU `gate = gate * sigmoid(gate) * up`, and GeGLU. Memory-bound; nothing is kept.

use super::{
    shared_out::SharedOut,
    simd::{Simd, exp},
};

/// A range of values of an in-place operation.
pub(crate) struct Span<'a> {
    pub(crate) out: &'a SharedOut<'a>,
    pub(crate) other: &'a [f32],
    pub(crate) from: usize,
    pub(crate) len: usize,
}

/// One vector's worth of values that may be cut short: the rest reads as 0 and is not written.
#[inline(always)]
fn padded(values: &[f32]) -> [f32; 16] {
    let mut out = [0.0; 16];
    out[..values.len()].copy_from_slice(values);
    out
}

/// # Safety
/// As for [`Simd`]; the span is inside both slices and this task's alone.
#[inline(always)]
pub(crate) unsafe fn add<S: Simd>(_: S, span: &Span<'_>) {
    // SAFETY: the caller's promise.
    let out = unsafe { span.out.part(span.from, span.len) };
    let other = &span.other[span.from..span.from + span.len];
    for (value, term) in out.iter_mut().zip(other) {
        *value += term;
    }
}

/// What a gate makes of its value. A trait and not a closure: a closure is compiled without the instruction set of the
/// body that it is given to, and each of its vector operations becomes a call.
///
/// # Safety
/// As for [`Simd`].
trait Gate {
    unsafe fn open<S: Simd>(gate: S::V, up: S::V) -> S::V;
}

/// `gate * sigmoid(gate) * up`.
struct Silu;

impl Gate for Silu {
    #[inline(always)]
    unsafe fn open<S: Simd>(gate: S::V, up: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe {
            let one = S::splat(1.0);
            let sigmoid = S::div(one, S::add(one, exp::<S>(S::sub(S::zero(), gate))));
            S::mul(S::mul(gate, sigmoid), up)
        }
    }
}

/// The tanh form of GELU, written with the logistic function: `(1 + tanh(z)) / 2 = sigmoid(2z)`.
struct Gelu;

impl Gate for Gelu {
    #[inline(always)]
    unsafe fn open<S: Simd>(gate: S::V, up: S::V) -> S::V {
        /// `2 * sqrt(2 / pi)`.
        const TWICE_ROOT: f32 = 1.595_769;
        const CUBIC: f32 = 0.044_715;
        // SAFETY: the caller's promise.
        unsafe {
            let one = S::splat(1.0);
            let inner = S::fma(S::mul(S::splat(CUBIC), gate), gate, one);
            let twice_z = S::mul(S::mul(S::splat(TWICE_ROOT), gate), inner);
            let sigmoid = S::div(one, S::add(one, exp::<S>(S::sub(S::zero(), twice_z))));
            S::mul(S::mul(gate, sigmoid), up)
        }
    }
}

/// # Safety
/// As for [`add`].
#[inline(always)]
pub(crate) unsafe fn swiglu<S: Simd>(_: S, span: &Span<'_>) {
    // SAFETY: the caller's promise.
    unsafe { gated::<S, Silu>(span) }
}

/// # Safety
/// As for [`add`].
#[inline(always)]
pub(crate) unsafe fn geglu<S: Simd>(_: S, span: &Span<'_>) {
    // SAFETY: the caller's promise.
    unsafe { gated::<S, Gelu>(span) }
}

/// `out = open(out, other)`, vector by vector.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
unsafe fn gated<S: Simd, G: Gate>(span: &Span<'_>) {
    // SAFETY: the caller's promise; whole vectors stay inside `len`, the rest goes through a padded copy.
    unsafe {
        let gate = span.out.part(span.from, span.len);
        let up = &span.other[span.from..span.from + span.len];
        let whole = span.len - span.len % S::LANES;
        for at in (0..whole).step_by(S::LANES) {
            let value = G::open::<S>(S::load(gate.as_ptr().add(at)), S::load(up.as_ptr().add(at)));
            S::store(gate.as_mut_ptr().add(at), value);
        }
        if whole < span.len {
            let (mut tail, up) = (padded(&gate[whole..]), padded(&up[whole..]));
            let value = G::open::<S>(S::load(tail.as_ptr()), S::load(up.as_ptr()));
            S::store(tail.as_mut_ptr(), value);
            gate[whole..].copy_from_slice(&tail[..span.len - whole]);
        }
    }
}

/// Turns scores into `e^(score - max)`; gives `[max, sum]`, the sum added up in index order by lanes.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp_and_sum<S: Simd>(scores: &mut [f32]) -> [f32; 2] {
    // SAFETY: the caller's promise; whole vectors stay inside, the rest goes through a padded copy.
    unsafe {
        let (len, start) = (scores.len(), scores.as_mut_ptr());
        let whole = len - len % S::LANES;
        let mut most = S::splat(f32::NEG_INFINITY);
        for at in (0..whole).step_by(S::LANES) {
            most = S::max(most, S::load(start.add(at)));
        }
        let mut lanes = [f32::NEG_INFINITY; 16];
        S::store(lanes.as_mut_ptr(), most);
        let max = lanes.iter().chain(&scores[whole..]).fold(f32::NEG_INFINITY, |a, b| a.max(*b));

        let (most, mut sum) = (S::splat(max), S::zero());
        for at in (0..whole).step_by(S::LANES) {
            let value = exp::<S>(S::sub(S::load(start.add(at)), most));
            S::store(start.add(at), value);
            sum = S::add(sum, value);
        }
        let mut total = S::sum4([sum, S::zero(), S::zero(), S::zero()])[0];
        if whole < len {
            let mut tail = padded(&scores[whole..]);
            S::store(tail.as_mut_ptr(), exp::<S>(S::sub(S::load(tail.as_ptr()), most)));
            for (score, value) in scores[whole..].iter_mut().zip(tail) {
                *score = value;
                total += value;
            }
        }
        [max, total]
    }
}
