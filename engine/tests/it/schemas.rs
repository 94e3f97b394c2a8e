//! JSON schemas: what comes out follows them, and bad ones are refused in words.

use std::time::{SystemTime, UNIX_EPOCH};

use engine::{
    grammar::{
        CACHED_GRAMMARS, GrammarError, GrammarSource, GrammarVocabulary, MAX_SOURCE_BYTES, factory::GrammarFactory,
    },
    model::Gguf,
    request::{FinishReason, SamplingParams, StopConditions},
    tokenizer::{AddSpecial, ParseSpecial, Tokenizer},
};
use serde_json::Value;

use crate::{
    constrained::{TINY, byte_token, constrained, grammar, long_engine, simulated_engine},
    data::smollm2,
    schema_checker::{follows, value_of},
    support::run_to_end,
};

/// One schema a line.
const SCHEMAS: &str = r##"
{"type":"null"}
{"type":"boolean"}
{"type":"integer","minimum":0,"maximum":9}
{"type":"integer","minimum":-17,"maximum":1234}
{"type":"integer","exclusiveMinimum":99,"exclusiveMaximum":1001}
{"type":"integer","minimum":0,"maximum":1000,"multipleOf":5}
{"type":"integer","maximum":-3,"minimum":-400}
{"type":"number","minimum":0,"maximum":1}
{"type":"number","exclusiveMinimum":-2.5,"maximum":17.25}
{"type":"number","minimum":100,"maximum":200}
{"type":"string","maxLength":0}
{"type":"string","minLength":3,"maxLength":8}
{"type":"string","minLength":20,"maxLength":20}
{"type":"string","pattern":"^[A-Z]{2}[0-9]{3}$"}
{"type":"string","pattern":"^(red|green|blue)-[0-9]+$","maxLength":20}
{"type":"string","pattern":"^[é日-本]{1,4}$"}
{"type":"string","pattern":"b+c","maxLength":12}
{"type":"string","format":"date"}
{"type":"string","format":"time"}
{"type":"string","format":"date-time"}
{"type":"string","format":"uuid"}
{"type":"string","format":"ipv4"}
{"type":"string","format":"ipv6"}
{"type":"string","format":"email"}
{"enum":["a","b",1,2.5,null,true,["x"],{"k":"v"}]}
{"enum":["é","日本語","😀","\"quoted\"","line\nbreak"]}
{"const":{"fixed":[1,2,3],"nested":{"é":"ü"}}}
{"const":"one"}
{"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":5}
{"type":"array","items":{"type":"integer","minimum":0,"maximum":99},"minItems":1,"maxItems":4}
{"type":"array","maxItems":0}
{"type":"array","prefixItems":[{"type":"integer","minimum":1,"maximum":3},{"enum":["x","y"]}],"items":false,"minItems":2}
{"type":"array","prefixItems":[{"type":"null"}],"items":{"const":7},"minItems":3,"maxItems":5}
{"type":"array","items":{"type":"array","items":{"enum":[0,1]},"minItems":2,"maxItems":2},"minItems":2,"maxItems":3}
{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"],"additionalProperties":false}
{"type":"object","properties":{"a":{"type":"boolean"},"b":{"type":"null"}},"additionalProperties":false}
{"type":"object","properties":{"a":{"enum":[1]},"b":{"enum":[2]},"c":{"enum":[3]}},"required":["c","a"],"additionalProperties":false}
{"type":"object","properties":{"deep":{"type":"object","properties":{"er":{"type":"object","properties":{"still":{"const":true}},"required":["still"],"additionalProperties":false}},"required":["er"],"additionalProperties":false}},"required":["deep"],"additionalProperties":false}
{"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":10},"age":{"type":"integer","minimum":0,"maximum":150},"tags":{"type":"array","items":{"type":"string","maxLength":4},"maxItems":3}},"required":["name","age","tags"],"additionalProperties":false}
{"type":"object","patternProperties":{"^x_":{"type":"integer","minimum":0,"maximum":9}},"properties":{"id":{"const":1}},"required":["id"],"additionalProperties":false}
{"type":"object","additionalProperties":{"type":"boolean"}}
{"type":"object","properties":{"schlüssel":{"enum":["wörter","日本"]}},"required":["schlüssel"],"additionalProperties":false}
{"type":["integer","null"],"minimum":5,"maximum":6}
{"type":["boolean","string"],"maxLength":3}
{"anyOf":[{"type":"boolean"},{"type":"integer","minimum":1,"maximum":5}]}
{"anyOf":[{"type":"object","properties":{"kind":{"const":"a"},"x":{"type":"boolean"}},"required":["kind","x"],"additionalProperties":false},{"type":"object","properties":{"kind":{"const":"b"},"y":{"type":"null"}},"required":["kind","y"],"additionalProperties":false}]}
{"oneOf":[{"type":"null"},{"type":"string","maxLength":5},{"type":"array","items":{"type":"null"},"maxItems":2}]}
{"oneOf":[{"const":1},{"const":2},{"const":"three"}]}
{"allOf":[{"type":"integer","minimum":3},{"maximum":8}]}
{"allOf":[{"type":"object","properties":{"a":{"const":1}},"required":["a"]},{"type":"object","properties":{"b":{"const":2}},"required":["b"]}],"additionalProperties":true}
{"$ref":"#/$defs/leaf","$defs":{"leaf":{"type":"boolean"}}}
{"type":"object","properties":{"p":{"$ref":"#/$defs/point"},"q":{"$ref":"#/$defs/point"}},"required":["p","q"],"additionalProperties":false,"$defs":{"point":{"type":"object","properties":{"x":{"$ref":"#/$defs/n"},"y":{"$ref":"#/$defs/n"}},"required":["x","y"],"additionalProperties":false},"n":{"type":"integer","minimum":-9,"maximum":9}}}
{"$ref":"#/definitions/list","definitions":{"list":{"anyOf":[{"type":"null"},{"type":"object","properties":{"head":{"enum":[1,2]},"tail":{"$ref":"#/definitions/list"}},"required":["head","tail"],"additionalProperties":false}]}}}
{"type":"array","items":{"anyOf":[{"$ref":"#/$defs/number"},{"$ref":"#/$defs/word"}]},"minItems":3,"maxItems":3,"$defs":{"number":{"type":"integer","minimum":0,"maximum":9},"word":{"type":"string","minLength":1,"maxLength":3}}}
{"type":"object","title":"call","description":"ignored","properties":{"unit":{"type":"string","enum":["c","f"],"default":"c"},"when":{"type":"string","format":"date"},"at":{"type":"array","prefixItems":[{"type":"number","minimum":-90,"maximum":90},{"type":"number","minimum":-180,"maximum":180}],"items":false,"minItems":2}},"required":["unit","when","at"],"additionalProperties":false}
{"type":"object","properties":{"steps":{"type":"array","items":{"type":"object","properties":{"n":{"type":"integer","minimum":1,"maximum":20},"ok":{"type":["boolean","null"]}},"required":["n","ok"],"additionalProperties":false},"minItems":1,"maxItems":3},"done":{"const":true}},"required":["steps","done"],"additionalProperties":false}
{"oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"}],"$defs":{"cat":{"type":"object","properties":{"kind":{"const":"cat"},"lives":{"type":"integer","minimum":1,"maximum":9}},"required":["kind","lives"],"additionalProperties":false},"dog":{"type":"object","properties":{"kind":{"const":"dog"},"friend":{"oneOf":[{"type":"null"},{"$ref":"#/$defs/cat"}]}},"required":["kind","friend"],"additionalProperties":false}}}
true
{}
{"type":"object"}
"##;

/// Seeds of a random test: `SEED`, else one from the clock; always printed.
fn base_seed() -> u64 {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(clock);
    println!("SEED={seed}");
    seed
}

/// Scenario: 60 schemas, each at six seeds and temperature 2, all sequences of a schema in one engine. What closes a
/// string, list or object is made likelier, else random text has no end.
/// Guarantees: each finished output parses and follows its schema, by an own checker; of each schema most finish.
#[test]
fn output_follows_its_schema() {
    const RUNS: u64 = 6;
    let seed = base_seed();
    let ends: Vec<(u32, f32)> = [b'"', b'}', b']'].map(|byte| (byte_token(byte), 12.0)).into();
    let schemas: Vec<&str> = SCHEMAS.lines().filter(|line| !line.is_empty()).collect();
    assert!(schemas.len() >= 55, "{}", schemas.len());
    for text in schemas {
        let schema: Value = serde_json::from_str(text).unwrap();
        let compiled = grammar(&GrammarSource::JsonSchema(text.to_owned()));
        let mut engine = long_engine();
        for run in 0..RUNS {
            let mut request = constrained(run, compiled.clone(), (seed.wrapping_add(run), 4000));
            request.sampling.logit_bias = ends.clone();
            engine.submit(request, 0).unwrap();
        }
        let outcomes = run_to_end(&mut engine).outcomes;
        let whole = outcomes.values().filter(|outcome| outcome.finish().reason == FinishReason::Stop);
        for outcome in whole.clone() {
            let value = value_of(&outcome.text)
                .unwrap_or_else(|fault| panic!("seed {seed}, {text}: {:?}: {fault}", outcome.text));
            let Some(value) = value else { continue };
            follows(&schema, &schema, &value).unwrap_or_else(|fault| panic!("seed {seed}, {text}: {value}: {fault}"));
        }
        let reasons: Vec<_> = outcomes.values().map(|outcome| outcome.finish()).collect();
        assert!(whole.count() as u64 > RUNS / 2, "seed {seed}, {text}: {reasons:?}");
    }
}

/// Scenario: the real vocabulary of 49 152 tokens, with random logits; all schemas are compiled, eight are run.
/// Guarantees: they compile; output follows its schema, with tokens of many characters and parts of characters.
#[test]
fn a_real_vocabulary_follows_schemas_too() {
    let Some(path) = smollm2() else { return };
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(&path).unwrap()).unwrap();
    let vocab = tokenizer.vocab_size();
    let factory = GrammarFactory::new(&GrammarVocabulary::of_tokenizer(&tokenizer, vocab)).unwrap();
    let seed = base_seed();
    let mut engine = simulated_engine(&tokenizer);
    let ends =
        ["\"", "}", "]", "\"}", "\","].map(|text| tokenizer.encode(text, AddSpecial::Never, ParseSpecial::Plain));
    let ends: Vec<(u32, f32)> = ends.into_iter().map(|tokens| (tokens.unwrap()[0], 20.0)).collect();
    let mut run = Vec::new();
    for (index, text) in SCHEMAS.lines().filter(|line| !line.is_empty()).enumerate() {
        let compiled = factory.compile(&GrammarSource::JsonSchema(text.to_owned())).unwrap();
        if index % 7 == 4 {
            let mut request = constrained(index as u64, compiled, (seed.wrapping_add(index as u64), 600));
            request.sampling.logit_bias = ends.clone();
            request.stop.stop_tokens = tokenizer.eos_tokens().to_vec();
            engine.submit(request, 0).unwrap();
            run.push((index as u64, serde_json::from_str::<Value>(text).unwrap()));
        }
    }
    let outcomes = run_to_end(&mut engine).outcomes;
    let whole = run.iter().filter(|(index, _)| outcomes[index].finish().reason == FinishReason::Stop);
    assert!(whole.clone().count() > run.len() / 2, "seed {seed}");
    for (index, schema) in whole {
        let Some(value) = value_of(&outcomes[index].text).unwrap() else { continue };
        follows(schema, schema, &value).unwrap_or_else(|fault| panic!("seed {seed}, {schema}: {value}: {fault}"));
    }
}

/// Scenario: any JSON object, at twenty seeds.
/// Guarantees: an object each time.
#[test]
fn json_object_gives_an_object() {
    let seed = base_seed();
    let mut engine = long_engine();
    for run in 0..20 {
        let mut request = constrained(run, grammar(&GrammarSource::JsonObject), (seed.wrapping_add(run), 4000));
        request.sampling.logit_bias = [b'"', b'}', b']'].map(|byte| (byte_token(byte), 12.0)).into();
        engine.submit(request, 0).unwrap();
    }
    let outcomes = run_to_end(&mut engine).outcomes;
    let whole: Vec<_> = outcomes.values().filter(|outcome| outcome.finish().reason == FinishReason::Stop).collect();
    assert!(whole.len() > 15, "seed {seed}: {} of 20 came to an end", whole.len());
    for outcome in whole {
        let Some(value) = value_of(&outcome.text).unwrap() else { continue };
        assert!(value.is_object(), "seed {seed}: {value}");
    }
}

/// Scenario: a number that no f64 holds, and a text that is no JSON.
/// Guarantees: the judge takes the first for JSON without a value, and refuses the second.
#[test]
fn numbers_beyond_an_f64_are_json() {
    assert!(value_of("[1E999]").unwrap().is_none());
    assert!(value_of("[1E999").is_err());
    assert_eq!(value_of("[1]").unwrap(), Some(serde_json::json!([1])));
}

/// Scenario: the greedy choice is a blank, wherever one is allowed.
/// Guarantees: the text still comes to its end.
#[test]
fn blanks_do_not_go_on_for_ever() {
    let source = r#"{"type":"array","items":{"enum":[1,2]},"minItems":3,"maxItems":3}"#;
    let mut request = constrained(1, grammar(&GrammarSource::JsonSchema(source.to_owned())), (1, 1000));
    request.sampling =
        SamplingParams { temperature: 0.0, logit_bias: vec![(byte_token(b'\n'), 100.0)], ..request.sampling };
    request.stop = StopConditions { max_tokens: 1000, ..request.stop };
    let mut engine = long_engine();
    engine.submit(request, 0).unwrap();
    let outcome = run_to_end(&mut engine).outcomes.remove(&1).unwrap();
    assert_eq!(outcome.finish().reason, FinishReason::Stop);
    assert!(outcome.text.lines().count() > 100, "{:?}", outcome.text);
    serde_json::from_str::<Vec<u8>>(&outcome.text).unwrap();
}

/// Scenario: sources that are no JSON, no schema, no regular expression, no grammar; schemas that allow nothing or use
/// what can't be enforced; one that is too long.
/// Guarantees: each is refused, and the error says what is wrong with it.
#[test]
fn bad_sources_are_refused_in_words() {
    let schema = |text: &str| GrammarSource::JsonSchema(text.to_owned());
    let long = format!(r#"{{"enum":["{}"]}}"#, "x".repeat(MAX_SOURCE_BYTES));
    for (source, said) in [
        (schema("{"), "json_schema is not JSON"),
        (schema("[1]"), "json_schema is [1]; it must be an object, or true"),
        (schema("false"), "json_schema is false"),
        (schema(r#"{"type":"strnig"}"#), "strnig"),
        (schema(r#"{"type":"object","properties":{"a":{"not":{}}}}"#), "not"),
        (schema(r##"{"$ref":"#/$defs/nowhere"}"##), "nowhere"),
        (schema(r#"{"type":"string","minLength":5,"maxLength":2}"#), "minLength"),
        (schema(r#"{"type":"integer","minimum":5,"maximum":2}"#), "minimum"),
        (schema(r#"{"type":"string","pattern":"(unclosed"}"#), "unclosed"),
        (schema(r#"{"oneOf":[{"type":"integer"},{"type":"number"}]}"#), "anyOf would do"),
        (schema(r#"{"oneOf":[{"enum":[1,2]},{"enum":[2.0,3]}]}"#), "anyOf would do"),
        (schema(&long), "it must have at most 262144"),
        (GrammarSource::Regex("[a-".to_owned()), "regex can't be enforced"),
        (GrammarSource::Lark("start: nothing".to_owned()), "nothing"),
        (GrammarSource::Lark(String::new()), "grammar can't be enforced"),
    ] {
        let fault = TINY.factory.compile(&source).expect_err(&format!("{source:?}"));
        assert!(fault.to_string().contains(said), "{source:?}: {fault}");
        assert!(fault.to_string().len() < 2100, "{fault}");
    }
}

/// Scenario: grammars that would take a machine's memory or time: a huge repetition, references in a circle, a deep
/// nesting.
/// Guarantees: each is compiled or refused, soon, and nothing panics.
#[test]
fn hostile_sources_are_bounded() {
    let deep = format!("{}true{}", r#"{"items":"#.repeat(120), "}".repeat(120));
    for source in [
        GrammarSource::Regex("((a{1,1000}){1,1000}){1,1000}".to_owned()),
        GrammarSource::Regex("(x+x+)+y(.*a.{40}){12}".to_owned()),
        GrammarSource::JsonSchema(r##"{"$ref":"#"}"##.to_owned()),
        GrammarSource::JsonSchema(deep),
        GrammarSource::JsonSchema(
            r#"{"type":"array","minItems":1000000000,"items":{"type":"array","minItems":1000000}}"#.to_owned(),
        ),
        GrammarSource::JsonSchema(r#"{"type":"string","minLength":1000000000}"#.to_owned()),
    ] {
        match TINY.factory.compile(&source) {
            Ok(_) => {}
            Err(GrammarError::Refused { .. } | GrammarError::NotJson(_)) => {}
            Err(other) => panic!("{source:?}: {other}"),
        }
    }
}

/// Scenario: one more grammar than the cache holds, the first one asked for again in between.
/// Guarantees: the bound holds; equal sources are one grammar.
#[test]
fn compiled_grammars_are_kept_within_a_bound() {
    let factory = GrammarFactory::new(&GrammarVocabulary::of_tokenizer(&TINY.tokenizer, TINY.model.vocab())).unwrap();
    let source = |index: usize| GrammarSource::Regex(format!("a{{{}}}", index + 1));
    let first = factory.compile(&source(0)).unwrap();
    for index in 1..=CACHED_GRAMMARS + 5 {
        factory.compile(&source(index)).unwrap();
        assert_eq!(factory.compile(&source(0)).unwrap(), first);
        assert!(factory.cached() <= CACHED_GRAMMARS);
    }
    assert_eq!(factory.cached(), CACHED_GRAMMARS);
}
