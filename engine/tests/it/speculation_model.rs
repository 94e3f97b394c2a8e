//! Speculation on the CPU runner: real logits, real keys and values.

use std::{collections::BTreeMap, sync::Arc};

use engine::{
    config::EngineConfig,
    engine::Engine,
    model::{Arithmetic, Gguf, Model, tiny::tiny_llama_gguf},
    request::{GenerateRequest, SamplingParams},
    runner::{
        ModelRunner,
        cpu::{CpuRunner, CpuRunnerOptions, KvDtype},
    },
    speculation::{
        config::{Speculation, SpeculationLimits},
        vocabulary::same_vocabulary,
    },
    stop::TokenBytes,
    tokenizer::{AddSpecial, ParseSpecial, Tokenizer},
};
use proptest::prelude::*;

use crate::{data::smollm2, support::request};

struct Words(Tokenizer);

impl TokenBytes for Words {
    fn token_bytes(&self, token: u32) -> &[u8] {
        self.0.token_bytes(token)
    }
}

fn tiny(seed: u64) -> Arc<Model> {
    Model::from_gguf(Gguf::from_bytes(tiny_llama_gguf(seed)).unwrap(), Arithmetic::Int8).unwrap()
}

fn runner(model: &Arc<Model>, blocks: usize) -> Box<dyn ModelRunner> {
    Box::new(
        CpuRunner::new(model.clone(), CpuRunnerOptions { threads: 2, block_size: 16, blocks, kv_dtype: KvDtype::F32 })
            .unwrap(),
    )
}

/// Tokens of each request, and the guesses that were right. Every step is said to take the same time, so guesses always
/// seem to pay.
fn play(model: &Arc<Model>, draft: &Arc<Model>, speculation: Speculation, requests: &[GenerateRequest]) -> Played {
    let tokenizer = Arc::new(Words(Tokenizer::from_gguf(model.gguf()).unwrap()));
    let config = EngineConfig { max_running: 4, token_budget: 64, speculation, ..EngineConfig::default() };
    let mut engine = Engine::with_draft(config, runner(model, 40), runner(draft, 200), tokenizer).unwrap();
    for (index, request) in requests.iter().enumerate() {
        engine.submit(GenerateRequest { id: engine::request::SequenceId(index as u64), ..request.clone() }, 0).unwrap();
    }
    let (mut tokens, mut accepted, mut now) = (BTreeMap::<u64, Vec<u32>>::new(), 0, 0);
    while engine.has_work() {
        now += 1_000;
        let report = engine.step(now);
        accepted += report.stats.accepted_tokens;
        for output in report.outputs {
            tokens.entry(output.sequence.0).or_default().extend(output.tokens);
        }
    }
    (tokens, accepted)
}

type Played = (BTreeMap<u64, Vec<u32>>, u32);

const LIMITS: SpeculationLimits = SpeculationLimits { max_draft: 8, verify_interval: 8 };

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Scenario: random prompts, temperatures and seeds side by side in a pool too small for all, on the test model, which
    /// repeats itself when greedy; guesses by lookup, by the model itself and by another of its vocabulary.
    /// Guarantees: the same tokens.
    #[test]
    fn the_test_model_says_the_same(
        shapes in prop::collection::vec((1usize..90, 1u32..80, prop_oneof![Just(0.0f32), 0.1f32..1.2], any::<u64>()), 1..6),
        other in prop::sample::select(vec![1u64, 2]),
    ) {
        let (model, draft) = (tiny(1), tiny(other));
        let requests: Vec<_> = shapes.iter().map(|(length, max_tokens, temperature, seed)| {
            let prompt: Vec<u32> = (0..*length).map(|at| ((at % 13) as u64 * 31 + seed % 200) as u32 % 260).collect();
            let sampling = SamplingParams { temperature: *temperature, seed: *seed, ..SamplingParams::default() };
            GenerateRequest { sampling, ..request(0, &prompt, *max_tokens) }
        }).collect();
        let plain = play(&model, &draft, Speculation::Off, &requests).0;
        for speculation in
            [Speculation::PromptLookup { limits: LIMITS, min_match: 2 }, Speculation::Draft { limits: LIMITS }]
        {
            prop_assert_eq!(&plain, &play(&model, &draft, speculation, &requests).0);
        }
    }
}

/// Scenario: the test model drafts for itself.
/// Guarantees: every guess is right, greedy and sampled alike: the draft draws with the same numbers.
#[test]
fn a_model_guesses_itself() {
    let model = tiny(1);
    let sampling = SamplingParams { temperature: 0.9, seed: 5, ..SamplingParams::default() };
    let sampled = GenerateRequest { sampling, ..request(0, &[5, 6, 7], 64) };
    let draft = Speculation::Draft { limits: LIMITS };
    let (tokens, accepted) = play(&model, &model, draft, &[request(0, &[9, 8, 7], 64), sampled]);
    assert_eq!((tokens[&0].len(), tokens[&1].len()), (64, 64));
    // Two tokens before anything is known of costs, then nine a step.
    assert!(accepted > 2 * 64 * 3 / 4, "{accepted} accepted");
}

/// Scenario: SmolLM2 is asked to repeat a list, and to write, greedy and sampled, side by side and alone.
/// Guarantees: the same tokens with and without lookup; on the repeated list many are guessed.
#[test]
fn smollm2_says_the_same() {
    let Some(path) = smollm2() else { return };
    let model = Model::load(&path, Arithmetic::Int8).unwrap();
    let tokenizer = Tokenizer::from_gguf(model.gguf()).unwrap();
    let ask = |text: &str, temperature: f32| {
        let text = format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
        let prompt = tokenizer.encode(&text, AddSpecial::Never, ParseSpecial::Control).unwrap();
        let sampling = SamplingParams { temperature, seed: 11, ..SamplingParams::default() };
        let mut new = GenerateRequest { sampling, ..request(0, &prompt, 48) };
        new.stop.stop_tokens = tokenizer.eos_tokens().to_vec();
        new
    };
    let list =
        "Repeat this list exactly: apple, river, stone, cloud, lamp, apple, river, stone, cloud, lamp, apple, river";
    let requests = [ask(list, 0.0), ask("Tell me a short story about a fox.", 0.0), ask("What is rain?", 0.8)];
    let lookup = Speculation::PromptLookup { limits: LIMITS, min_match: 3 };
    let (plain, _) = play(&model, &model, Speculation::Off, &requests);
    let (guessed, accepted) = play(&model, &model, lookup, &requests);
    assert_eq!(plain, guessed);
    assert!(accepted > 0, "nothing was guessed right");
}

/// Scenario: files of the same vocabulary, and one whose tokens were renamed.
/// Guarantees: the first is accepted; the second is refused by the token that differs.
#[test]
fn vocabularies_are_compared_by_name() {
    let (bytes, model) = (tiny_llama_gguf(2), tiny(1));
    assert!(same_vocabulary(model.gguf(), &Gguf::from_bytes(bytes.clone()).unwrap()).is_ok());
    let mut renamed = bytes;
    let at = renamed.windows(12).position(|part| part == b"<|im_start|>").unwrap();
    renamed[at + 2] = b'x';
    let error = same_vocabulary(model.gguf(), &Gguf::from_bytes(renamed).unwrap()).unwrap_err().to_string();
    assert!(error.contains("token 1 is \"<|xm_start|>\" in it, expected \"<|im_start|>\""), "{error}");
}
