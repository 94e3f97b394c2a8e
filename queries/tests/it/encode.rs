//! Answers as JSON, CSV and Arrow, byte for byte (SPEC E2).

use std::sync::Arc;

use arrow::{
    array::{
        ArrayRef, BooleanArray, Date32Array, Float32Array, Float64Array, Int64Array, ListArray, RecordBatch,
        StringArray, StructArray, TimestampMicrosecondArray, TimestampSecondArray, UInt64Array,
    },
    datatypes::{DataType, Field, Int64Type, Schema},
    ipc::reader::StreamReader,
};
use expect_test::{Expect, expect};
use queries::encode;

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<_> = columns.iter().map(|(name, c)| Field::new(*name, c.data_type().clone(), true)).collect();
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

fn check(batch: &RecordBatch, json: Expect, csv: Expect) {
    let (schema, batches) = (batch.schema(), std::slice::from_ref(batch));
    let text = encode::json(&schema, batches).unwrap();
    serde_json::from_slice::<serde_json::Value>(&text).expect("JSON is valid");
    json.assert_eq(&String::from_utf8(text).unwrap());
    csv.assert_eq(&String::from_utf8(encode::csv(&schema, batches).unwrap()).unwrap());
}

/// Scenario: times with and without a zone, in two resolutions, before the epoch, and NULL.
/// Guarantees: RFC 3339 with microseconds, `Z` only where the zone is known.
#[test]
fn times() {
    let micros = TimestampMicrosecondArray::from(vec![Some(1_767_614_400_000_001), Some(-1), None]);
    let seconds = TimestampSecondArray::from(vec![Some(0), Some(1_767_614_400), None]);
    let dates = Date32Array::from(vec![Some(0), Some(20_458), None]);
    let batch = batch(vec![
        ("at", Arc::new(micros.with_timezone("UTC"))),
        ("local", Arc::new(seconds)),
        ("day", Arc::new(dates)),
    ]);
    check(
        &batch,
        expect![[r#"
            [{"at":"2026-01-05T12:00:00.000001Z","local":"1970-01-01T00:00:00.000000","day":"1970-01-01"},
            {"at":"1969-12-31T23:59:59.999999Z","local":"2026-01-05T12:00:00.000000","day":"2026-01-05"},
            {"at":null,"local":null,"day":null}]"#]],
        expect![[r#"
            at,local,day
            2026-01-05T12:00:00.000001Z,1970-01-01T00:00:00.000000,1970-01-01
            1969-12-31T23:59:59.999999Z,2026-01-05T12:00:00.000000,2026-01-05
            ,,
        "#]],
    );
}

/// Scenario: integers at and beyond 2^53, hashes, floats that JSON cannot say.
/// Guarantees: nothing is rounded by a reader that only knows doubles; hashes are strings whatever their size.
#[test]
fn numbers() {
    let batch = batch(vec![
        ("n", Arc::new(UInt64Array::from(vec![1 << 53, (1 << 53) + 1]))),
        ("i", Arc::new(Int64Array::from(vec![-(1 << 53), i64::MIN]))),
        ("block_hash", Arc::new(UInt64Array::from(vec![Some(7), None]))),
        ("x", Arc::new(Float64Array::from(vec![0.1, f64::NAN]))),
        ("y", Arc::new(Float32Array::from(vec![0.1, f32::INFINITY]))),
        ("b", Arc::new(BooleanArray::from(vec![true, false]))),
    ]);
    check(
        &batch,
        expect![[r#"
            [{"n":9007199254740992,"i":-9007199254740992,"block_hash":"7","x":0.1,"y":0.1,"b":true},
            {"n":"9007199254740993","i":"-9223372036854775808","block_hash":null,"x":null,"y":null,"b":false}]"#]],
        expect![[r#"
            n,i,block_hash,x,y,b
            9007199254740992,-9007199254740992,7,0.1,0.1,true
            9007199254740993,-9223372036854775808,,,,false
        "#]],
    );
}

/// Scenario: text with quotes, commas and line ends; lists and structs; one name three times.
/// Guarantees: CSV quotes what it must and holds nested values as JSON; no column is lost to its name.
#[test]
fn text_nesting_and_names() {
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>(vec![Some(vec![Some(1), None]), None]);
    let pair = StructArray::from(vec![(
        Arc::new(Field::new("child_hash", DataType::UInt64, true)),
        Arc::new(UInt64Array::from(vec![Some(5), None])) as ArrayRef,
    )]);
    let batch = batch(vec![
        ("t", Arc::new(StringArray::from(vec![Some("say \"hi\", twice\n"), Some("")]))),
        ("t", Arc::new(list)),
        ("t", Arc::new(pair)),
    ]);
    check(
        &batch,
        expect![[r#"
            [{"t":"say \"hi\", twice\n","t_2":[1,null],"t_3":{"child_hash":"5"}},
            {"t":"","t_2":null,"t_3":{"child_hash":null}}]"#]],
        expect![[r#"
            t,t_2,t_3
            "say ""hi"", twice
            ","[1,null]","{""child_hash"":""5""}"
            ,,"{""child_hash"":null}"
        "#]],
    );
}

/// Scenario: an answer without rows.
/// Guarantees: JSON is an empty array, CSV a header, Arrow a stream with the schema.
#[test]
fn no_rows() {
    let empty = crate::fixtures::faults(0..0);
    check(&empty, expect!["[]"], expect!["at,component,kind,detail,count\n"]);
    let bytes = encode::arrow_stream(&empty.schema(), &[]).unwrap();
    let reader = StreamReader::try_new(bytes.as_slice(), None).unwrap();
    assert_eq!(reader.schema(), empty.schema());
    assert_eq!(reader.count(), 0);
}

/// Scenario: every topic's fixed rows go through Arrow.
/// Guarantees: schema with its metadata and all values come back.
#[test]
fn arrow_comes_back() {
    for topic in queries::Topic::ALL {
        let rows = crate::fixtures::fixed(topic);
        let bytes =
            encode::arrow_stream(&rows.schema(), &[rows.slice(0, 2), rows.slice(2, rows.num_rows() - 2)]).unwrap();
        let reader = StreamReader::try_new(bytes.as_slice(), None).unwrap();
        assert_eq!(reader.schema(), topic.schema());
        let batches = reader.collect::<Result<Vec<_>, _>>().unwrap();
        assert_eq!(arrow::compute::concat_batches(&topic.schema(), &batches).unwrap(), rows);
    }
}
