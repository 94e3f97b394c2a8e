//! What is read off a row of logits. One pass each; plain code, since a row is read once a token.

/// Index of the largest value, the lowest of equals. NaN is never the largest; 0 if there is nothing else.
pub fn argmax(logits: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, value) in logits.iter().enumerate() {
        if *value > best.1 {
            best = (index, *value);
        }
    }
    best.0
}

/// Natural logarithm of the sum of `e^logit`, in f64. NaN in gives NaN out; -inf for no values.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !max.is_finite() {
        return f64::from(max);
    }
    let max = f64::from(max);
    max + logits.iter().map(|value| (f64::from(*value) - max).exp()).sum::<f64>().ln()
}

/// Log-probability of each logit, in place.
pub fn log_softmax(logits: &mut [f32]) {
    let sum = log_sum_exp(logits);
    for value in logits {
        *value = (f64::from(*value) - sum) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: ties, NaN, infinities, nothing at all.
    /// Guarantees: the lowest of equals wins, NaN never does, no panic.
    #[test]
    fn argmax_takes_the_lowest_of_equals() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, -2.0]), 1);
        assert_eq!(argmax(&[f32::NAN, -5.0, f32::NAN]), 1);
        assert_eq!(argmax(&[f32::NEG_INFINITY; 3]), 0);
        assert_eq!(argmax(&[]), 0);
    }

    /// Scenario: logits far too large for `exp` in f32.
    /// Guarantees: probabilities still sum to 1, and shifts of all logits change nothing.
    #[test]
    fn log_softmax_is_normalised() {
        for shift in [-1000.0, 0.0, 1000.0] {
            let mut logits = [0.0, 1.0, 2.0, -3.0].map(|value: f32| value + shift);
            log_softmax(&mut logits);
            let sum: f64 = logits.iter().map(|value| f64::from(*value).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-6, "sum {sum} at shift {shift}");
            assert!((logits[2] - logits[1] - 1.0).abs() < 1e-4);
        }
    }
}
