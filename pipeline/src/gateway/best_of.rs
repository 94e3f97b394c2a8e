//! `best_of`: more sequences are run than returned, and the likeliest are kept (OpenAI's completions).
//!
//! Invariants: of each prompt the `returned` samples with the highest mean log-probability a token are kept, best first, equal
//! ones in the order in which they were asked for; a sample without tokens comes last. Cost: a sort of a prompt's samples.

use std::cmp::Ordering;

use super::shape::Gathered;

/// How many sequences each prompt runs, and how many of them the client gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    pub prompts: usize,
    pub samples: usize,
    pub returned: usize,
}

impl Sampling {
    /// Sequences of the whole request.
    pub fn sequences(self) -> usize {
        self.prompts * self.samples
    }

    pub fn selects(self) -> bool {
        self.samples > self.returned
    }
}

/// The choices of the answer, prompt by prompt. `gathered`: all samples, a prompt's together.
pub fn keep_best(gathered: Vec<Gathered>, sampling: Sampling) -> Vec<Gathered> {
    if !sampling.selects() {
        return gathered;
    }
    let mut kept = Vec::with_capacity(sampling.prompts * sampling.returned);
    let mut rest = gathered.into_iter();
    for _ in 0..sampling.prompts {
        let mut samples: Vec<Gathered> = rest.by_ref().take(sampling.samples).collect();
        samples.sort_by(likelier_first);
        samples.truncate(sampling.returned);
        kept.append(&mut samples);
    }
    kept
}

fn likelier_first(a: &Gathered, b: &Gathered) -> Ordering {
    mean_logprob(b).total_cmp(&mean_logprob(a))
}

fn mean_logprob(sample: &Gathered) -> f64 {
    match sample.logprobs.len() {
        0 => f64::NEG_INFINITY,
        count => sample.logprobs.iter().map(|entry| f64::from(entry.logprob)).sum::<f64>() / count as f64,
    }
}

#[cfg(test)]
mod tests {
    use engine::step::TokenLogprob;
    use proptest::prelude::*;

    use super::*;

    fn sample(name: usize, logprobs: &[f32]) -> Gathered {
        let entries = logprobs.iter().map(|logprob| TokenLogprob { token: 0, logprob: *logprob, top: vec![] });
        Gathered { text: name.to_string(), logprobs: entries.collect(), ..Gathered::default() }
    }

    proptest! {
        /// Scenario: any samples of one to three prompts, some without tokens, and any number returned.
        /// Guarantees: each prompt keeps its own; nothing left out is likelier a token than something kept; order is by
        /// likelihood and then by place.
        #[test]
        fn the_likeliest_are_kept(
            prompts in 1usize..4, returned in 1usize..4, more in 0usize..4,
            values in prop::collection::vec(prop::collection::vec(prop::sample::select(vec![-0.5f32, -1.0, -2.0]), 0..3), 21),
        ) {
            let sampling = Sampling { prompts, samples: returned + more, returned };
            let all: Vec<Gathered> = (0..sampling.sequences()).map(|n| sample(n, &values[n % 21])).collect();
            let kept = keep_best(all.clone(), sampling);
            prop_assert_eq!(kept.len(), prompts * returned);
            for (prompt, kept) in kept.chunks(returned).enumerate() {
                let own = &all[prompt * sampling.samples..][..sampling.samples];
                let names: Vec<usize> = kept.iter().map(|sample| sample.text.parse().unwrap()).collect();
                let is_better = |a: usize, b: usize| {
                    let (x, y) = (mean_logprob(&all[a]), mean_logprob(&all[b]));
                    x > y || (x == y && a < b)
                };
                prop_assert!(!sampling.selects() || names.windows(2).all(|pair| is_better(pair[0], pair[1])));
                for other in own.iter().map(|sample| sample.text.parse::<usize>().unwrap()) {
                    let is_kept = names.contains(&other);
                    prop_assert!(is_kept || names.iter().all(|name| is_better(*name, other)));
                }
            }
        }
    }
}
