//! Protocol messages to domain types and back. Total on the way out; on the way in a field that is missing or out of range
//! gives a [`WireError`] that names it.
//!
//! Invariant: a call that goes through both directions is unchanged (a property test holds that).
//! Cost: one copy of the prompt and of each chunk. No state.

use engine::{
    grammar::GrammarSource,
    request::{FinishReason, Lane, MAX_REQUEST_CLASSES, RequestClass, SamplingParams, StopConditions},
    step::{Finish, SequenceOutput, TokenLogprob},
};

use operators::ReplayWant;

use super::engine_thread::Start;
use crate::{
    gateway::instances::{Chunk, ChunkFinish, GenerateCall, KvAsk},
    ids::ProcessEpoch,
    proto,
};

/// A message that does not say what it must.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct WireError {
    pub field: &'static str,
    pub problem: String,
}

fn wrong(field: &'static str, problem: impl Into<String>) -> WireError {
    WireError { field, problem: problem.into() }
}

pub fn request_to_proto(call: &GenerateCall, grammar: Option<&GrammarSource>) -> proto::GenerateRequest {
    let s = &call.sampling;
    let lane = match call.lane {
        Lane::L1 => proto::Lane::L1,
        Lane::L2 => proto::Lane::L2,
        Lane::L3 => proto::Lane::L3,
    };
    proto::GenerateRequest {
        request_id: call.request_id.clone(),
        prompt: call.prompt.to_vec(),
        sampling: Some(proto::Sampling {
            temperature: s.temperature,
            top_k: s.top_k,
            top_p: s.top_p,
            min_p: s.min_p,
            frequency_penalty: s.frequency_penalty,
            presence_penalty: s.presence_penalty,
            repetition_penalty: s.repetition_penalty,
            logit_bias: s.logit_bias.iter().map(|&(token, bias)| proto::LogitBias { token, bias }).collect(),
            seed: s.seed,
            logprobs: s.logprobs.map(u32::from),
        }),
        stop: Some(proto::Stop {
            max_tokens: call.stop.max_tokens,
            stop_tokens: call.stop.stop_tokens.clone(),
            stop_strings: call.stop.stop_strings.clone(),
        }),
        lane: lane.into(),
        deadline_us: call.deadline,
        drop_at_us: call.drop_at,
        cache_salt: call.cache_salt,
        sampling_offset: call.sampling_offset,
        class: call.class.map(|RequestClass(number)| u32::from(number)),
        grammar: grammar.map(grammar_to_proto),
    }
}

fn grammar_to_proto(source: &GrammarSource) -> proto::Grammar {
    let kind = match source {
        GrammarSource::JsonObject => proto::GrammarKind::JsonObject,
        GrammarSource::JsonSchema(_) => proto::GrammarKind::JsonSchema,
        GrammarSource::Regex(_) => proto::GrammarKind::Regex,
        GrammarSource::Lark(_) => proto::GrammarKind::Lark,
    };
    proto::Grammar { kind: kind.into(), text: source.text().to_string() }
}

fn grammar_from_proto(grammar: proto::Grammar) -> Result<GrammarSource, WireError> {
    Ok(match proto::GrammarKind::try_from(grammar.kind) {
        Ok(proto::GrammarKind::JsonObject) => GrammarSource::JsonObject,
        Ok(proto::GrammarKind::JsonSchema) => GrammarSource::JsonSchema(grammar.text),
        Ok(proto::GrammarKind::Regex) => GrammarSource::Regex(grammar.text),
        Ok(proto::GrammarKind::Lark) => GrammarSource::Lark(grammar.text),
        Err(_) => return Err(wrong("grammar.kind", format!("{} is no kind; expected 0 to 3", grammar.kind))),
    })
}

pub fn start_from_proto(request: proto::GenerateRequest) -> Result<Start, WireError> {
    let lane = match proto::Lane::try_from(request.lane) {
        Ok(proto::Lane::L1) => Lane::L1,
        Ok(proto::Lane::L2) => Lane::L2,
        Ok(proto::Lane::L3) => Lane::L3,
        Err(_) => return Err(wrong("lane", format!("{} is no lane; expected 0 (L2), 1 (L1) or 2 (L3)", request.lane))),
    };
    let stop = request.stop.ok_or_else(|| wrong("stop", "missing; it holds max_tokens"))?;
    if stop.max_tokens == 0 {
        return Err(wrong("stop.max_tokens", "0; expected at least 1"));
    }
    Ok(Start {
        name: request.request_id,
        prompt: request.prompt.into(),
        sampling: sampling_from_proto(request.sampling.ok_or_else(|| wrong("sampling", "missing"))?)?,
        stop: StopConditions {
            max_tokens: stop.max_tokens,
            stop_tokens: stop.stop_tokens,
            stop_strings: stop.stop_strings,
        },
        lane,
        deadline: request.deadline_us,
        drop_at: request.drop_at_us,
        cache_salt: request.cache_salt,
        sampling_offset: request.sampling_offset,
        class: request.class.map(class_from_proto).transpose()?,
        grammar: request.grammar.map(grammar_from_proto).transpose()?,
    })
}

fn class_from_proto(number: u32) -> Result<RequestClass, WireError> {
    match u8::try_from(number) {
        Ok(number) if number < MAX_REQUEST_CLASSES => Ok(RequestClass(number)),
        _ => Err(wrong("class", format!("{number}; expected below {MAX_REQUEST_CLASSES}"))),
    }
}

fn sampling_from_proto(s: proto::Sampling) -> Result<SamplingParams, WireError> {
    let finite = [
        ("sampling.temperature", s.temperature),
        ("sampling.top_p", s.top_p),
        ("sampling.min_p", s.min_p),
        ("sampling.frequency_penalty", s.frequency_penalty),
        ("sampling.presence_penalty", s.presence_penalty),
        ("sampling.repetition_penalty", s.repetition_penalty),
    ];
    if let Some((field, value)) = finite.into_iter().find(|(_, value)| !value.is_finite()) {
        return Err(wrong(field, format!("{value}; expected a finite number")));
    }
    let logprobs = match s.logprobs {
        None => None,
        Some(n) => Some(u8::try_from(n).map_err(|_| wrong("sampling.logprobs", format!("{n}; expected at most 255")))?),
    };
    Ok(SamplingParams {
        temperature: s.temperature,
        top_k: s.top_k,
        top_p: s.top_p,
        min_p: s.min_p,
        frequency_penalty: s.frequency_penalty,
        presence_penalty: s.presence_penalty,
        repetition_penalty: s.repetition_penalty,
        logit_bias: s.logit_bias.into_iter().map(|b| (b.token, b.bias)).collect(),
        seed: s.seed,
        logprobs,
    })
}

pub fn chunk_to_proto(output: SequenceOutput) -> proto::GenerateChunk {
    proto::GenerateChunk {
        tokens: output.tokens,
        text: output.text,
        logprobs: output.logprobs.into_iter().map(logprob_to_proto).collect(),
        finish: output.finish.map(finish_to_proto),
    }
}

fn logprob_to_proto(entry: TokenLogprob) -> proto::TokenLogprob {
    let top = entry.top.into_iter().map(|(token, logprob)| proto::TopLogprob { token, logprob }).collect();
    proto::TokenLogprob { token: entry.token, logprob: entry.logprob, top }
}

fn finish_to_proto(finish: Finish) -> proto::Finish {
    let reason = match finish.reason {
        FinishReason::Stop => proto::FinishReason::Stop,
        FinishReason::Length => proto::FinishReason::Length,
        FinishReason::Cancelled => proto::FinishReason::Cancelled,
        FinishReason::Failed => proto::FinishReason::Failed,
        FinishReason::Late => proto::FinishReason::Late,
    };
    proto::Finish {
        reason: reason.into(),
        prompt_tokens: finish.prompt_tokens,
        completion_tokens: finish.completion_tokens,
        cached_tokens: finish.cached_tokens,
        preemptions: finish.preemptions,
        queue_us: finish.first_scheduled.map(|first| first.saturating_sub(finish.submitted)),
        error: finish.error.unwrap_or_default(),
    }
}

pub fn chunk_from_proto(chunk: proto::GenerateChunk) -> Result<Chunk, WireError> {
    let logprobs = chunk.logprobs.into_iter().map(|entry| TokenLogprob {
        token: entry.token,
        logprob: entry.logprob,
        top: entry.top.into_iter().map(|t| (t.token, t.logprob)).collect(),
    });
    Ok(Chunk {
        tokens: chunk.tokens,
        text: chunk.text,
        logprobs: logprobs.collect(),
        finish: chunk.finish.map(finish_from_proto).transpose()?,
    })
}

fn finish_from_proto(finish: proto::Finish) -> Result<ChunkFinish, WireError> {
    let reason = match proto::FinishReason::try_from(finish.reason) {
        Ok(proto::FinishReason::Stop) => FinishReason::Stop,
        Ok(proto::FinishReason::Length) => FinishReason::Length,
        Ok(proto::FinishReason::Cancelled) => FinishReason::Cancelled,
        Ok(proto::FinishReason::Failed) => FinishReason::Failed,
        Ok(proto::FinishReason::Late) => FinishReason::Late,
        Err(_) => return Err(wrong("finish.reason", format!("{} is no reason; expected 0 to 4", finish.reason))),
    };
    Ok(ChunkFinish {
        reason,
        prompt_tokens: finish.prompt_tokens,
        completion_tokens: finish.completion_tokens,
        cached_tokens: finish.cached_tokens,
        error: (!finish.error.is_empty()).then_some(finish.error),
    })
}

/// What a worker is asked to tell of its KV blocks.
pub fn kv_ask_to_proto(epoch: ProcessEpoch, ask: KvAsk) -> proto::TellKvRequest {
    use proto::tell_kv_request::Again;
    let again = match ask {
        KvAsk::Sums => None,
        KvAsk::Again(ReplayWant::Events { from_seq, to_seq }) => {
            Some(Again::Events(proto::KvEvents { from_seq, to_seq }))
        }
        KvAsk::Again(ReplayWant::Buckets { mask }) => Some(Again::Buckets(mask)),
        KvAsk::Again(ReplayWant::Everything) => Some(Again::Everything(proto::KvEverything {})),
    };
    proto::TellKvRequest { epoch: epoch.0, again }
}

/// The other way round; every message is a question.
pub fn kv_ask_from_proto(message: &proto::TellKvRequest) -> KvAsk {
    use proto::tell_kv_request::Again;
    match &message.again {
        None => KvAsk::Sums,
        Some(Again::Events(events)) => {
            KvAsk::Again(ReplayWant::Events { from_seq: events.from_seq, to_seq: events.to_seq })
        }
        Some(Again::Buckets(mask)) => KvAsk::Again(ReplayWant::Buckets { mask: *mask }),
        Some(Again::Everything(_)) => KvAsk::Again(ReplayWant::Everything),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn calls() -> impl Strategy<Value = GenerateCall> {
        let sampling = (
            (0.0f32..2.0, proptest::option::of(any::<u32>()), 0.0f32..=1.0, 0.0f32..=1.0),
            (-2.0f32..2.0, -2.0f32..2.0, 0.5f32..2.0, any::<u64>()),
            proptest::collection::vec((any::<u32>(), -100.0f32..100.0), 0..4),
            proptest::option::of(any::<u8>()),
        )
            .prop_map(|((temperature, top_k, top_p, min_p), (f, p, r, seed), logit_bias, logprobs)| SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                frequency_penalty: f,
                presence_penalty: p,
                repetition_penalty: r,
                logit_bias,
                seed,
                logprobs,
            });
        let stop =
            (1u32.., proptest::collection::vec(any::<u32>(), 0..4), proptest::collection::vec(".*", 0..4)).prop_map(
                |(max_tokens, stop_tokens, stop_strings)| StopConditions { max_tokens, stop_tokens, stop_strings },
            );
        let lane = prop_oneof![Just(Lane::L1), Just(Lane::L2), Just(Lane::L3)];
        let prompt = proptest::collection::vec(any::<u32>(), 0..40);
        (
            ".*",
            prompt,
            sampling,
            stop,
            lane,
            any::<[Option<i64>; 2]>(),
            any::<(u64, u32)>(),
            proptest::option::of(0..MAX_REQUEST_CLASSES),
        )
            .prop_map(
                |(
                    request_id,
                    prompt,
                    sampling,
                    stop,
                    lane,
                    [deadline, drop_at],
                    (cache_salt, sampling_offset),
                    class,
                )| {
                    GenerateCall {
                        request_id,
                        prompt: prompt.into(),
                        sampling,
                        stop,
                        lane,
                        deadline,
                        drop_at,
                        cache_salt,
                        sampling_offset,
                        class: class.map(RequestClass),
                        traceparent: None,
                    }
                },
            )
    }

    fn grammars() -> impl Strategy<Value = GrammarSource> {
        prop_oneof![
            Just(GrammarSource::JsonObject),
            ".*".prop_map(GrammarSource::JsonSchema),
            ".*".prop_map(GrammarSource::Regex),
            ".*".prop_map(GrammarSource::Lark),
        ]
    }

    proptest! {
        /// Scenario: any call goes to a message and back. Guarantees: nothing the engine sees is changed on the way.
        #[test]
        fn a_call_survives_the_wire(call in calls(), grammar in proptest::option::of(grammars())) {
            let message = request_to_proto(&call, grammar.as_ref());
            prop_assert_eq!(&message.request_id, &call.request_id);
            prop_assert_eq!(start_from_proto(message).unwrap(), Start::new(call, grammar));
        }
    }

    /// Scenario: messages with a missing or impossible field. Guarantees: the error names the field.
    #[test]
    fn wrong_messages_name_the_field() {
        let good = proto::GenerateRequest {
            sampling: Some(proto::Sampling { top_p: 1.0, ..Default::default() }),
            stop: Some(proto::Stop { max_tokens: 1, ..Default::default() }),
            ..Default::default()
        };
        assert!(start_from_proto(good.clone()).is_ok());
        let mut cases = vec![good; 7];
        cases[0].lane = 9;
        cases[1].stop = None;
        cases[2].sampling = None;
        cases[3].sampling.as_mut().unwrap().temperature = f32::NAN;
        cases[4].stop.as_mut().unwrap().max_tokens = 0;
        cases[6].class = Some(13);
        cases[5].grammar = Some(proto::Grammar { kind: 7, text: String::new() });
        let fields: Vec<&str> = cases.into_iter().map(|c| start_from_proto(c).unwrap_err().field).collect();
        assert_eq!(
            fields,
            ["lane", "stop", "sampling", "sampling.temperature", "stop.max_tokens", "grammar.kind", "class"]
        );
    }

    /// Scenario: a last chunk with log-probabilities. Guarantees: accounts and error text arrive; an empty error is none.
    #[test]
    fn a_chunk_survives_the_wire() {
        let logprobs = vec![TokenLogprob { token: 7, logprob: -0.5, top: vec![(7, -0.5), (8, -1.0)] }];
        let finish = Finish {
            reason: FinishReason::Failed,
            prompt_tokens: 5,
            completion_tokens: 2,
            cached_tokens: 4,
            submitted: 100,
            first_scheduled: Some(150),
            preemptions: 1,
            error: Some("runner: no".into()),
        };
        let output = SequenceOutput {
            sequence: engine::request::SequenceId(1),
            tokens: vec![7],
            text: "é".into(),
            logprobs: logprobs.clone(),
            finish: Some(finish),
        };
        let message = chunk_to_proto(output);
        assert_eq!(message.finish.as_ref().unwrap().queue_us, Some(50));
        let chunk = chunk_from_proto(message).unwrap();
        assert_eq!((chunk.tokens, chunk.text.as_str(), chunk.logprobs), (vec![7], "é", logprobs));
        let end = chunk.finish.unwrap();
        assert_eq!(
            (end.reason, end.cached_tokens, end.error.as_deref()),
            (FinishReason::Failed, 4, Some("runner: no"))
        );
    }
}
