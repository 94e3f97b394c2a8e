//! The decoder of batches on hostile input: any columns, any values, damaged streams.
//!
//! Invariant of all: nothing panics, and every row is taken or refused with its reason. proptest prints the seed and keeps
//! failing cases.

use std::sync::Arc;

use arrow::{
    array::{
        ArrayRef, BooleanArray, Float64Array, Int64Array, LargeStringArray, RecordBatch, RecordBatchOptions,
        StringArray, TimestampMicrosecondArray, UInt32Array, UInt64Array, new_null_array,
    },
    datatypes::{DataType, Field, Schema},
};
use arrow_flight::{FlightData, decode::FlightDataDecoder, encode::FlightDataEncoderBuilder, error::FlightError};
use futures::{TryStreamExt, stream};
use operators::{FlowRows, FunnelRow, KvChange, KvRow, ServesRow};
use proptest::prelude::*;
use queries::Topic;

use super::{feed::NAMES_MAX, *};
use crate::{
    bus::Published,
    rows::{InstanceRow, RefusedRow, RequestRow},
    worker::{flight_server::next_message, telemetry::batch_of},
};

const NOW: i64 = 1_700_000_000_000_000;
const WORDS: [&str; 14] = [
    "stored",
    "hit",
    "removed",
    "cleared",
    "sum",
    "listed",
    "L1",
    "L2",
    "dispatched",
    "grew",
    "finished",
    "arrived",
    "",
    "ünïcode",
];

/// What is done to a column: nothing, another type, another name, or it is left out.
#[derive(Debug, Clone)]
enum Damage {
    Keep,
    Type(u8),
    Rename,
    Drop,
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        12 => Just(Damage::Keep),
        1 => (0..9u8).prop_map(Damage::Type),
        1 => Just(Damage::Rename),
        1 => Just(Damage::Drop),
    ]
}

fn type_of(kind: u8) -> DataType {
    match kind {
        0 => DataType::Utf8,
        1 => DataType::UInt64,
        2 => DataType::UInt32,
        3 => DataType::Int64,
        4 => DataType::Float64,
        5 => DataType::Boolean,
        6 => DataType::Null,
        7 => DataType::LargeUtf8,
        _ => Topic::KvEvents.schema().field(0).data_type().clone(),
    }
}

/// An array of a type from any numbers; `None` is null where the column may be.
fn array(data_type: &DataType, values: &[Option<u64>]) -> ArrayRef {
    let word = |value: &Option<u64>| value.map(|value| WORDS[(value % 14) as usize]);
    let values = values.iter();
    match data_type {
        DataType::Utf8 => Arc::new(values.map(word).collect::<StringArray>()),
        DataType::LargeUtf8 => Arc::new(values.map(word).collect::<LargeStringArray>()),
        DataType::UInt64 => Arc::new(values.copied().collect::<UInt64Array>()),
        DataType::UInt32 => Arc::new(values.map(|value| value.map(|v| v as u32)).collect::<UInt32Array>()),
        DataType::Int64 => Arc::new(values.map(|value| value.map(|v| v as i64)).collect::<Int64Array>()),
        DataType::Float64 => Arc::new(values.map(|value| value.map(f64::from_bits)).collect::<Float64Array>()),
        DataType::Boolean => Arc::new(values.map(|value| value.map(|v| v & 1 == 1)).collect::<BooleanArray>()),
        DataType::Timestamp(..) => {
            let times = values.map(|value| value.map(|v| v as i64)).collect::<TimestampMicrosecondArray>();
            Arc::new(times.with_timezone("UTC"))
        }
        other => new_null_array(other, values.len()),
    }
}

/// Small numbers mostly, so that rows make sense together; now and then any.
fn values(rows: usize) -> impl Strategy<Value = Vec<Option<u64>>> {
    let value = prop_oneof![
        1 => Just(None),
        8 => (0..20u64).prop_map(Some),
        2 => Just(Some(NOW as u64)),
        1 => any::<u64>().prop_map(Some),
    ];
    prop::collection::vec(value, rows)
}

/// A batch that is like one of the topic's.
fn batch() -> impl Strategy<Value = (Topic, RecordBatch)> {
    let topic = prop::sample::select(vec![Topic::KvEvents, Topic::Requests, Topic::EngineSteps, Topic::Instances]);
    (topic, 0..6usize).prop_flat_map(|(topic, rows)| {
        let columns = topic.schema().fields().len();
        let parts = (prop::collection::vec(damage(), columns), prop::collection::vec(values(rows), columns));
        (parts, prop::bool::weighted(0.5)).prop_map(move |((damages, values), is_sound)| {
            let (mut fields, mut arrays) = (Vec::new(), Vec::new());
            for ((field, damage), values) in topic.schema().fields().iter().zip(damages).zip(values) {
                let damage = if is_sound { Damage::Keep } else { damage };
                let data_type = match &damage {
                    Damage::Drop => continue,
                    Damage::Type(kind) => type_of(*kind),
                    Damage::Keep | Damage::Rename => field.data_type().clone(),
                };
                let name = if matches!(damage, Damage::Rename) { "other" } else { field.name() };
                let is_nullable = field.is_nullable() || data_type == DataType::Null || !is_sound;
                let values: Vec<_> =
                    if is_nullable { values } else { values.into_iter().map(|value| value.or(Some(1))).collect() };
                arrays.push(array(&data_type, &values));
                fields.push(Field::new(name, data_type, is_nullable));
            }
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let schema = Arc::new(Schema::new(fields));
            (topic, RecordBatch::try_new_with_options(schema, arrays, &options).unwrap())
        })
    })
}

/// Takes a batch; gives its rows, and what was refused.
fn take(topic: Topic, batch: RecordBatch) -> (FlowRows, Vec<RefusedRow>) {
    let (mut rows, refused) = (FlowRows::default(), RefusedRows::default());
    let mut feed = Feed::new(Names::default(), 16);
    feed.take(&Published { topic, first_row: 0, batch }, NOW, (&mut rows, &refused));
    (rows, refused.take(NOW))
}

/// Scenario: a request that was refused before its prompt was known, and one refused after it came.
/// Guarantees: the funnel hears of the second alone, so that a malformed body is no wrong row.
#[test]
fn refused_before_its_prompt_is_no_end() {
    let row = |id: &str, event: &str| RequestRow {
        at: NOW,
        request_id: id.into(),
        event: event.into(),
        model: "m".into(),
        prompt_tokens: 16,
        block_tokens: Some(16),
        prompt_blocks: Some(vec![vec![7]]),
        ..RequestRow::default()
    };
    let told = [row("a", "rejected"), row("b", "arrived"), row("b", "rejected")];
    let (rows, refused) = take(Topic::Requests, batch_of(&told).unwrap());
    assert_eq!((rows.funnel.len(), rows.prompts.len(), refused.len()), (2, 1, 0), "{:?}", rows.funnel);
}

/// Scenario: an instance is ready, then its process dies.
/// Guarantees: the funnel is told what it serves; the cache index is told that the incarnation has ended, once.
#[test]
fn a_dead_instance_leaves_the_cache_index() {
    let row = |epoch, state: &str| InstanceRow {
        at: NOW,
        instance: 7,
        name: "i7".into(),
        epoch,
        state: state.into(),
        model: "m".into(),
        address: None,
        pid: None,
        detail: None,
        phase_us: None,
        variant: None,
    };
    let told = [row(3, "ready"), row(3, "dead"), row(4, "starting")];
    let (rows, _) = take(Topic::Instances, batch_of(&told).unwrap());
    assert_eq!(rows.kv, vec![KvRow { instance: 7, epoch: 3, seq: 1, event: KvChange::Gone }]);
    let serves = FunnelRow::Serves(ServesRow { instance: 7, model: 0, at_us: NOW });
    assert_eq!(rows.funnel, vec![serves.clone(), serves.clone(), serves]);
}

/// Scenario: more names than have a number of their own.
/// Guarantees: known ones keep theirs; all further ones share `(other)`, and nobody's name.
#[test]
fn names_too_many_share_one_number() {
    let names = Names::default();
    (0..NAMES_MAX).for_each(|name| assert_eq!(names.number(&name.to_string()), name as u32));
    assert_eq!(names.number("too many"), names.number("far too many"));
    assert_eq!(names.name(names.number("too many")), "(other)");
    assert_eq!(names.name(names.number("7")), "7");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Scenario: batches of all topics that the dataflow reads, with any values, some with columns that are missing, of
    /// another type or name, or null where they must not be.
    /// Guarantees: no panic; a batch is taken row by row or refused as a whole; each refusal names topic and reason.
    #[test]
    fn any_columns_are_taken_or_refused((topic, batch) in batch()) {
        let count = batch.num_rows();
        let (rows, refused) = take(topic, batch);
        let malformed: u64 = refused.iter().filter(|row| row.reason == "malformed_batch").map(|row| row.count).sum();
        if malformed > 0 {
            prop_assert_eq!((rows.len(), malformed), (0, count.max(1) as u64));
        } else {
            let taken = match topic {
                Topic::KvEvents => rows.kv.len(),
                Topic::EngineSteps => rows.steps.len(),
                _ => count,
            };
            prop_assert_eq!(taken, count);
        }
        let voids = rows.kv.iter().filter(|row| row.event == KvChange::Void).count();
        let told = refused.iter().filter(|row| matches!(row.reason.as_str(), "missing" | "unknown_level" | "unknown_event"));
        prop_assert!(topic == Topic::Requests || told.count() == voids);
        prop_assert!(refused.iter().all(|row| row.topic == topic.name() && row.count > 0 && !row.detail.is_empty()));
    }

    /// Scenario: Flight messages of a batch, as a worker sends them, with header or body cut or changed.
    /// Guarantees: reading them is an error or gives batches that are taken or refused; never a panic that gets out.
    #[test]
    fn damaged_messages_are_errors(
        (topic, batch) in batch(), message in any::<prop::sample::Index>(), place in any::<prop::sample::Index>(), flip in any::<u8>()
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let encoded = FlightDataEncoderBuilder::new().build(stream::iter([Ok(batch)]));
            let mut messages: Vec<FlightData> = encoded.try_collect().await.unwrap();
            let chosen = message.index(messages.len());
            let data = &mut messages[chosen];
            let part = if flip & 1 == 0 || data.data_body.is_empty() { &mut data.data_header } else { &mut data.data_body };
            let mut bytes = part.to_vec();
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                if flip < 64 { bytes.truncate(place) } else { bytes[place] ^= flip }
            }
            *part = bytes.into();
            let mut decoder = FlightDataDecoder::new(stream::iter(messages.into_iter().map(Ok::<_, FlightError>)));
            while let Some(Ok(decoded)) = next_message(&mut decoder).await {
                if let arrow_flight::decode::DecodedPayload::RecordBatch(batch) = decoded.payload {
                    take(topic, batch);
                }
            }
        });
    }
}

fn event(event: &str, level: Option<&str>, block_hash: Option<u64>) -> crate::rows::KvEventRow {
    crate::rows::KvEventRow {
        at: NOW,
        instance: 3,
        epoch: 1,
        seq: 7,
        event: event.into(),
        level: level.map(Into::into),
        block_hash,
        tokens: Some(16),
        ..crate::rows::KvEventRow::default()
    }
}

/// Scenario: an event that nobody knows, a level that nobody knows, a hash that is not given, a row of long ago.
/// Guarantees: each is refused with its reason, field, value and instance; the first three use up their number.
#[test]
fn wrong_rows_are_told() {
    let rows = [
        event("vanished", Some("L1"), Some(1)),
        event("stored", Some("tape"), Some(1)),
        event("removed", Some("L1"), None),
        crate::rows::KvEventRow { at: NOW - OFF_TIME_US - 1, ..event("stored", Some("L3"), Some(1)) },
    ];
    let (rows, refused) = take(Topic::KvEvents, batch_of(&rows).unwrap());
    assert_eq!(rows.kv.iter().filter(|row| row.event == KvChange::Void).count(), 3);
    assert_eq!(rows.kv[3].event, KvChange::Stored { hash: 1, parent: None, level: 3, tokens: 16 });
    let told: Vec<_> =
        refused.iter().map(|r| (r.reason.as_str(), r.field.as_deref(), r.value.as_deref(), r.instance)).collect();
    let late = (NOW - OFF_TIME_US - 1).to_string();
    assert_eq!(
        told,
        vec![
            ("unknown_event", Some("event"), Some("vanished"), Some(3)),
            ("unknown_level", Some("level"), Some("tape"), Some(3)),
            ("missing", Some("block_hash"), None, Some(3)),
            ("late", Some("at"), Some(late.as_str()), None),
        ]
    );
}
