//! What a request must fulfil before the engine keeps anything of it.
//!
//! Invariant: past this check no value of a request can make the sampler or the scheduler fail. Errors name the field,
//! its value and what would be right.
//!
//! Cost: O(prompt + bias entries). No state.

use crate::{
    block_table::blocks_for,
    grammar::Grammar,
    request::{GenerateRequest, MAX_REQUEST_CLASSES, RequestClass, SamplingParams, StopConditions, SubmitRejection},
    runner::RunnerShape,
    stop::{MAX_STOP_BYTES, MAX_STOP_STRINGS, MAX_STOP_TOKENS},
};

/// Checks `request` against the model.
pub fn validate_request(request: &GenerateRequest, shape: &RunnerShape) -> Result<(), SubmitRejection> {
    if let Some(RequestClass(class)) = request.class.filter(|class| class.0 >= MAX_REQUEST_CLASSES) {
        return Err(invalid("class", class, "below 13"));
    }
    let (prompt, max_tokens) = (request.prompt.len(), request.stop.max_tokens as usize);
    if prompt == 0 {
        return Err(SubmitRejection::EmptyPrompt);
    }
    validate_stop(&request.stop)?;
    let asked = prompt + max_tokens;
    if asked > shape.context {
        return Err(SubmitRejection::ContextExceeded { context: shape.context, asked, prompt, max_tokens });
    }
    let blocks = blocks_for(asked - 1, shape.block_size);
    if blocks > shape.blocks {
        return Err(SubmitRejection::LargerThanPool { blocks, pool: shape.blocks });
    }
    let biased = request.sampling.logit_bias.iter().map(|(token, _)| token);
    if let Some(token) = request.prompt.iter().chain(biased).find(|token| **token as usize >= shape.vocab) {
        return Err(SubmitRejection::UnknownToken { token: *token, vocab: shape.vocab });
    }
    if let Some(grammar) = request.grammar.as_ref().map(Grammar::vocab).filter(|grammar| *grammar != shape.vocab) {
        return Err(SubmitRejection::GrammarVocabulary { grammar, vocab: shape.vocab });
    }
    validate_sampling(&request.sampling)
}

fn invalid(field: &'static str, value: impl ToString, expected: &'static str) -> SubmitRejection {
    SubmitRejection::InvalidParameter { field, value: value.to_string(), expected }
}

fn validate_stop(stop: &StopConditions) -> Result<(), SubmitRejection> {
    if stop.max_tokens == 0 {
        return Err(invalid("max_tokens", 0, "at least 1"));
    }
    if stop.stop_tokens.len() > MAX_STOP_TOKENS {
        return Err(invalid("stop_token_ids", format!("{} tokens", stop.stop_tokens.len()), "at most 256 tokens"));
    }
    if stop.stop_strings.len() > MAX_STOP_STRINGS {
        return Err(invalid("stop", format!("{} strings", stop.stop_strings.len()), "at most 32 strings"));
    }
    match stop.stop_strings.iter().find(|text| text.is_empty() || text.len() > MAX_STOP_BYTES) {
        Some(text) => Err(invalid("stop", format!("a string of {} bytes", text.len()), "strings of 1 to 1024 bytes")),
        None => Ok(()),
    }
}

fn validate_sampling(params: &SamplingParams) -> Result<(), SubmitRejection> {
    let ranges = [
        ("temperature", params.temperature, 0.0..=f32::MAX, "a finite number of at least 0"),
        ("min_p", params.min_p, 0.0..=1.0, "between 0 and 1"),
        ("frequency_penalty", params.frequency_penalty, -2.0..=2.0, "between -2 and 2"),
        ("presence_penalty", params.presence_penalty, -2.0..=2.0, "between -2 and 2"),
        ("repetition_penalty", params.repetition_penalty, 0.01..=100.0, "between 0.01 and 100"),
    ];
    for (field, value, range, expected) in ranges {
        if !range.contains(&value) {
            return Err(invalid(field, value, expected));
        }
    }
    if !(params.top_p > 0.0 && params.top_p <= 1.0) {
        return Err(invalid("top_p", params.top_p, "above 0 and at most 1"));
    }
    if params.top_k == Some(0) {
        return Err(invalid("top_k", 0, "at least 1; leave it out to keep all tokens"));
    }
    match params.logit_bias.iter().find(|(_, bias)| !(-100.0..=100.0).contains(bias)) {
        Some((_, bias)) => Err(invalid("logit_bias", bias, "between -100 and 100")),
        None => Ok(()),
    }
}
