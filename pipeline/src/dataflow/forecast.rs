//! What the predictors say for one request (SPEC A4): likely lengths of its answer and the service times of the variants that
//! may serve it. The gateway and the replay read them through here.
//!
//! Invariants: lengths are in order and equally likely; a group that has seen too little answers as its model; service times
//! come without the uncertainty of their coefficients, which is small beside that of single steps, so that they are few numbers
//! in a row. Cost: a look-up and [`LENGTHS`] quantiles a tier; one pass over the shapes. No state.

use operators::{
    LengthGroup, LengthKey, LengthModel, LinearFit, ServiceTime,
    output_length::{MIN_SAMPLES, prompt_class},
};

use super::{
    feed::{Names, tier_number},
    views::ViewState,
};
use crate::policy::{LENGTHS, Tier};

/// Whose forecast.
#[derive(Debug, Clone, Copy)]
pub struct ForecastRequest<'a> {
    pub model: &'a str,
    /// Variants that may serve it.
    pub variants: &'a [String],
    pub tenant_class: Tier,
    pub prompt_tokens: u32,
}

/// What the views hold for it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Predicted {
    /// See [`Forecast::lengths`](crate::policy::Forecast::lengths).
    pub lengths: [Vec<u32>; 3],
    pub services: Vec<(String, ServiceTime)>,
}

/// Reads the predictors.
pub fn read_forecast(state: &ViewState, names: &Names, request: &ForecastRequest<'_>) -> Predicted {
    let model = names.find(request.model);
    let lengths = [Tier::High, Tier::Medium, Tier::Low].map(|tier| {
        let group = LengthGroup {
            tier: tier_number(tier.name()),
            tenant_class: tier_number(request.tenant_class.name()),
            prompt_class: prompt_class(request.prompt_tokens),
        };
        let of = |group| model.and_then(|model| state.output_lengths.get(&LengthKey { model, group }));
        let own = of(Some(group)).filter(|row| row.lengths.samples >= MIN_SAMPLES);
        own.or_else(|| of(None)).map(|row| likely(&row.lengths)).unwrap_or_default()
    });
    let mut services = Vec::new();
    for variant in request.variants {
        let shape = names.find(&format!("{}/{variant}", request.model));
        let known = shape.and_then(|shape| state.service_times.get(&shape));
        if let Some(row) = known.filter(|_| !services.iter().any(|(other, _)| other == variant)) {
            services.push((variant.clone(), plain(row.time)));
        }
    }
    Predicted { lengths, services }
}

fn likely(model: &LengthModel) -> Vec<u32> {
    let share = |place: usize| (2 * place + 1) as f64 / (2 * LENGTHS) as f64;
    let length = |place| model.quantile(0, share(place)).map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
    (0..LENGTHS).map_while(length).collect()
}

/// The fits without their covariance.
fn plain(time: ServiceTime) -> ServiceTime {
    fn fit<const N: usize>(fit: LinearFit<N>) -> LinearFit<N> {
        LinearFit { samples: 0, covariance: [[0.0; N]; N], ..fit }
    }
    ServiceTime { prefill: time.prefill.map(fit), decode: time.decode.map(fit), ..time }
}
