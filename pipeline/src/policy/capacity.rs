//! The capacity curve: the fraction of an instance that one token of a request of a given length takes (SPEC B1).
//!
//! The points come from `evenkeel calibrate`. Between two measured lengths the fraction is interpolated linearly in the length;
//! below the shortest it is that of the shortest, above the longest that of the longest. Without a curve every token takes one
//! part in `lease_tokens_max`, whatever the length: a stated default, and [`CapacitySource`] says which it was.
//!
//! Invariants: lengths rise, fractions are above 0 and at most 1; so is every answer. Cost: one search a length.
//! State: at most [`POINTS_MAX`] points; a longer curve is refused.

/// Points of a curve.
pub const POINTS_MAX: usize = 1024;

/// One measured length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CapacityPoint {
    pub length_tokens: u32,
    /// Instances that one token of such a request takes.
    pub share_per_token: f64,
}

/// Why points are no curve.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CapacityError {
    #[error("no points")]
    Empty,
    #[error("{0} points; expected at most {POINTS_MAX}")]
    TooMany(usize),
    #[error("length_tokens = {length} after {before}; expected each length once, from 1 up")]
    Order { before: u32, length: u32 },
    #[error("instance_share_per_token = {share} at {length} tokens; expected more than 0 and at most 1")]
    Share { length: u32, share: f64 },
}

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct CapacityCurve(Vec<CapacityPoint>);

impl CapacityCurve {
    /// The curve through `points`, in order of length.
    ///
    /// # Errors
    /// As [`CapacityError`] says.
    pub fn new(points: Vec<CapacityPoint>) -> Result<Self, CapacityError> {
        if points.is_empty() {
            return Err(CapacityError::Empty);
        }
        if points.len() > POINTS_MAX {
            return Err(CapacityError::TooMany(points.len()));
        }
        let mut before = 0;
        for CapacityPoint { length_tokens: length, share_per_token: share } in &points {
            if *length <= before {
                return Err(CapacityError::Order { before, length: *length });
            }
            if !(*share > 0.0 && *share <= 1.0) {
                return Err(CapacityError::Share { length: *length, share: *share });
            }
            before = *length;
        }
        Ok(Self(points))
    }

    /// The curve of nobody's measurement: every token takes one part in `tokens_max`.
    pub fn flat(tokens_max: u64) -> Self {
        let share_per_token = 1.0 / tokens_max.max(1) as f64;
        Self(vec![CapacityPoint { length_tokens: 1, share_per_token }])
    }

    pub fn points(&self) -> &[CapacityPoint] {
        &self.0
    }

    /// Instances that one token of a request of `length` tokens takes.
    pub fn share_per_token(&self, length: u32) -> f64 {
        let after = self.0.partition_point(|point| point.length_tokens <= length);
        let Some(left) = after.checked_sub(1).map(|left| self.0[left]) else { return self.0[0].share_per_token };
        let Some(right) = self.0.get(after) else { return left.share_per_token };
        let span = f64::from(right.length_tokens - left.length_tokens);
        let part = f64::from(length - left.length_tokens) / span;
        left.share_per_token * (1.0 - part) + right.share_per_token * part
    }
}

/// Where a curve comes from; a visible state (DESIGN §7 rule 10).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapacitySource {
    /// Measured on this kind of machine with this model.
    Calibrated,
    /// Unknown: the flat default. In words, why.
    Default(String),
}

impl CapacitySource {
    pub fn name(&self) -> &'static str {
        match self {
            CapacitySource::Calibrated => "calibrated",
            CapacitySource::Default(_) => "default",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn curve(points: &[(u32, f64)]) -> Result<CapacityCurve, CapacityError> {
        let point = |(length_tokens, share_per_token): &(u32, f64)| CapacityPoint {
            length_tokens: *length_tokens,
            share_per_token: *share_per_token,
        };
        CapacityCurve::new(points.iter().map(point).collect())
    }

    /// Scenario: no points, a length twice, falling lengths, length 0, fractions of 0, above 1 and NaN, too many points.
    /// Guarantees: each is refused, and the message names the value and what would be right.
    #[test]
    fn wrong_points_are_refused() {
        let refusal = |points: &[(u32, f64)]| curve(points).expect_err("wrong points").to_string();
        let many: Vec<_> = (1..=POINTS_MAX as u32 + 1).map(|length| (length, 0.1)).collect();
        let lines = [
            refusal(&[]),
            refusal(&[(32, 0.1), (32, 0.2)]),
            refusal(&[(64, 0.1), (32, 0.2)]),
            refusal(&[(0, 0.1)]),
            refusal(&[(32, 0.0)]),
            refusal(&[(32, 1.5)]),
            refusal(&[(32, f64::NAN)]),
            refusal(&many),
        ];
        expect_test::expect![[r#"
            no points
            length_tokens = 32 after 32; expected each length once, from 1 up
            length_tokens = 32 after 64; expected each length once, from 1 up
            length_tokens = 0 after 0; expected each length once, from 1 up
            instance_share_per_token = 0 at 32 tokens; expected more than 0 and at most 1
            instance_share_per_token = 1.5 at 32 tokens; expected more than 0 and at most 1
            instance_share_per_token = NaN at 32 tokens; expected more than 0 and at most 1
            1025 points; expected at most 1024"#]]
        .assert_eq(&lines.join("\n"));
    }

    /// Scenario: lengths at, between and beyond the points; no measurement.
    /// Guarantees: the points themselves, linear between them, flat beyond; the default does not depend on the length.
    #[test]
    fn fractions_are_interpolated() {
        let made = curve(&[(100, 0.001), (200, 0.003)]).unwrap();
        let at = |length| (made.share_per_token(length) * 1e6).round() as u32;
        assert_eq!([0, 100, 150, 175, 200, 9000].map(at), [1000, 1000, 2000, 2500, 3000, 3000]);
        let flat = CapacityCurve::flat(200_000);
        assert_eq!((flat.share_per_token(0), flat.share_per_token(1 << 20)), (5e-6, 5e-6));
    }

    proptest! {
        /// Scenario: any curve, any length. Guarantees: the answer lies between the fractions of the two points around it.
        #[test]
        fn answers_lie_between_their_points(
            steps in prop::collection::vec((1u32..5000, 1e-6f64..1.0), 1..12), length in 0u32..80_000,
        ) {
            let mut at = 0;
            let points: Vec<_> = steps.iter().map(|(step, share)| { at += step; (at, *share) }).collect();
            let share = curve(&points).unwrap().share_per_token(length);
            let left = points.iter().rev().find(|(at, _)| *at <= length).unwrap_or(&points[0]).1;
            let right = points.iter().find(|(at, _)| *at >= length).unwrap_or(&points[points.len() - 1]).1;
            prop_assert!(share >= left.min(right) * (1.0 - 1e-12) && share <= left.max(right) * (1.0 + 1e-12));
        }
    }
}
