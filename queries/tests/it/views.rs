//! Tables with text as views: rows come back as they went in, own their memory, and nobody outside the engine sees a view (SPEC E2).

use std::sync::{Arc, Weak};

use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, UInt64Array},
    buffer::Buffer,
    compute::{concat_batches, take_record_batch},
    datatypes::{DataType, Schema},
    ipc::{reader::StreamDecoder, writer::StreamWriter},
};
use bytes::Bytes;
use proptest::prelude::*;
use queries::{
    Caller, LiveTables, Question, ScalarValue, SqlAnswers, SqlEngine, SqlError, Topic, query_runtime,
    ring::{FAN_IN, Ring},
};

use crate::{
    fixtures::{faults, fixed, fixed_tables, sql_tables},
    sql::limits,
};

fn rows_of(tables: &LiveTables, topic: Topic) -> RecordBatch {
    let batches: Vec<_> = tables.snapshot().table(topic).batches().map(Result::unwrap).collect();
    concat_batches(&topic.schema(), &batches).unwrap()
}

/// Rows of `requests` with errors of their own.
fn failures(words: &[Option<String>]) -> RecordBatch {
    let some = fixed(Topic::Requests);
    let which = UInt64Array::from_iter_values((0..words.len()).map(|row| (row % some.num_rows()) as u64));
    let rows = take_record_batch(&some, &which).unwrap();
    let at = rows.schema().index_of("error").unwrap();
    let mut columns = rows.columns().to_vec();
    columns[at] = Arc::new(StringArray::from(words.to_vec()));
    RecordBatch::try_new(rows.schema(), columns).unwrap()
}

/// Short, of just the length that a view holds, longer, empty, NULL, beyond ASCII.
fn words() -> impl Strategy<Value = Vec<Option<String>>> {
    prop::collection::vec(prop::option::of("[a-zé]{0,40}|[a-z]{12}|[a-z]{13}"), 0..50)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Scenario: batches of random sizes with random text, NULL among it, go into tables that join them, and leave them again at the bound.
    /// Guarantees: the rows are the newest of a plain list; however often chunks were joined, each column of text is one of views, with at
    /// most one buffer, which holds the long texts of the chunk and nothing else, unless it is a batch that waits to be joined.
    #[test]
    fn joined_chunks_hold_their_own_text_alone(rows_max in 1usize..400, batches in prop::collection::vec(words(), 1..40)) {
        let tables = LiveTables::for_sql(rows_max);
        let mut all = vec![failures(&[])];
        let mut came = Vec::new();
        let joined_rows = Ring::new(rows_max).joined_rows();
        for words in batches {
            came.push((all.iter().map(RecordBatch::num_rows).sum::<usize>() as u64, words.len()));
            all.push(failures(&words));
            tables.append(Topic::Requests, all[all.len() - 1].clone()).unwrap();
        }
        let all = concat_batches(&Topic::Requests.schema(), &all).unwrap();
        let held = rows_of(&tables, Topic::Requests);
        prop_assert!(held.num_rows() >= rows_max.min(all.num_rows()));
        prop_assert_eq!(&held, &all.slice(all.num_rows() - held.num_rows(), held.num_rows()));
        for chunk in tables.snapshot().table(Topic::Requests).chunks() {
            let rows = chunk.batch.num_rows();
            let waits = rows <= joined_rows && came.contains(&(chunk.first_row, rows));
            for (column, field) in chunk.batch.columns().iter().zip(Topic::Requests.schema().fields()) {
                let Some(views) = column.as_string_view_opt() else {
                    prop_assert_eq!(column.data_type(), field.data_type());
                    prop_assert!(field.data_type() != &DataType::Utf8);
                    continue;
                };
                let long: usize = views.iter().flatten().map(str::len).filter(|length| *length > 12).sum();
                prop_assert!(views.data_buffers().len() <= 1);
                prop_assert!(waits || views.data_buffers().iter().map(Buffer::capacity).sum::<usize>() == long);
            }
        }
    }
}

/// Scenario: the fixed rows of every table go in, and batches come back.
/// Guarantees: they are equal in every value and have the table's own schema, without views.
#[test]
fn rows_come_back_as_they_went_in() {
    let tables = sql_tables();
    for topic in Topic::ALL {
        assert_eq!(rows_of(&tables, topic), fixed(topic));
        for batch in tables.snapshot().table(topic).batches() {
            assert_eq!(batch.unwrap().schema(), topic.schema());
        }
    }
}

/// A message's bytes.
struct Message(Vec<u8>, #[expect(dead_code)] Arc<()>);

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The batch as it comes over a connection, its columns parts of one message; and whether that is still there.
fn received(batch: &RecordBatch) -> (RecordBatch, Weak<()>) {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    let there = Arc::new(());
    let kept = Arc::downgrade(&there);
    let mut bytes = Buffer::from(Bytes::from_owner(Message(writer.into_inner().unwrap(), there)));
    let batch = StreamDecoder::new().decode(&mut bytes).unwrap().unwrap();
    (batch, kept)
}

/// Scenario: rows of every table come in a message of more than half a chunk, and in eight small ones.
/// Guarantees: each message is let go, the small ones once their rows are joined to one chunk.
#[test]
fn the_message_that_rows_came_in_is_let_go() {
    for topic in Topic::ALL {
        let rows = fixed(topic);
        let (batch, kept) = received(&rows);
        assert!(kept.upgrade().is_some(), "{}: a batch is no copy", topic.name());
        let tables = LiveTables::for_sql(8 * rows.num_rows());
        tables.append(topic, batch).unwrap();
        assert!(kept.upgrade().is_none(), "{}", topic.name());
        assert_eq!(rows_of(&tables, topic), rows);

        let tables = LiveTables::for_sql(10_000);
        let kept: Vec<_> = std::iter::repeat_with(|| received(&rows))
            .take(FAN_IN)
            .map(|(batch, kept)| {
                tables.append(topic, batch).unwrap();
                kept
            })
            .collect();
        assert_eq!(tables.snapshot().table(topic).chunks().len(), 1, "{}", topic.name());
        assert!(kept.iter().all(|kept| kept.upgrade().is_none()), "{}", topic.name());
        assert_eq!(rows_of(&tables, topic), concat_batches(&topic.schema(), &vec![rows; FAN_IN]).unwrap());
    }
}

fn has_views(kind: &DataType) -> bool {
    format!("{kind:?}").contains("View")
}

fn check_plain(schema: &Schema, sql: &str) {
    for field in schema.fields() {
        assert!(!has_views(field.data_type()), "{sql}: {field:?}");
    }
}

/// Statements whose answers have text in every place that a type has.
const TEXTS: [&str; 10] = [
    "select * from requests",
    "select tier, upper(tier), tier || '!', substr(tenant, 2), coalesce(error, finish_reason, 'none') from requests",
    "select case when seq = 0 then tier when seq = 1 then 'one' end, nullif(tier, 'Low'), seq::varchar from requests",
    "select array_agg(tenant order by seq), min(tier), string_agg(model, ','), first_value(error) from requests",
    "select struct(tenant, seq), make_array(tier, 'x'), map(['a'], [tier]), named_struct('t', [tenant]) from requests",
    "select tier from requests union all select table_name from column_comments union all select 'x'",
    "select r.tenant, d.reason, c.comment from requests r join decisions d on r.request_id = d.request_id \
     join column_comments c on c.table_name = 'requests' and c.column_name = 'tier' where r.event like '%rr%'",
    "select tier, lag(tenant) over (partition by tier order by at, seq) from requests where tenant not in ('nobody')",
    "select name from (values ('High'), ('x')) v(name) where name in (select tier from requests)",
    "explain select tier from requests",
];

/// Scenario: answers with text at the top, in lists, structs and maps, made by functions, and of statements that give it a type.
/// Guarantees: neither the answer nor its description nor any of its batches has a view; they agree.
#[test]
fn answers_have_plain_text() {
    let runtime = query_runtime(2).unwrap();
    for tables in [fixed_tables(), sql_tables()] {
        let engine = SqlEngine::new(limits(), tables, runtime.handle().clone());
        for sql in TEXTS {
            let question = Question::new(sql, Caller::new("tests"));
            let answer = runtime.block_on(engine.answer(question.clone())).unwrap_or_else(|e| panic!("{sql}: {e}"));
            assert!(answer.rows() > 0, "{sql}");
            check_plain(&answer.schema, sql);
            for batch in &answer.batches {
                check_plain(&batch.schema(), sql);
                batch.columns().iter().for_each(|column| assert!(!has_views(column.data_type()), "{sql}"));
            }
            assert_eq!(runtime.block_on(engine.describe(question)).unwrap().schema, answer.schema, "{sql}");
        }
    }
}

/// Scenario: parameters beside columns of text: compared, looked for in a list, part of a pattern, as a value.
/// Guarantees: they are described as plain text and lists of it, and such values answer.
#[test]
fn parameters_are_plain_text() {
    let runtime = query_runtime(2).unwrap();
    let engine = SqlEngine::new(limits(), sql_tables(), runtime.handle().clone());
    let sql =
        "select count(*) as n from requests where tier = $1 and tenant = any($2) and event like $3 and $4 = tenant";
    let question = Question::new(sql, Caller::new("tests"));
    let described = runtime.block_on(engine.describe(question.clone())).unwrap();
    let list = DataType::new_list(DataType::Utf8, true);
    let kinds = [DataType::Utf8, list, DataType::Utf8, DataType::Utf8].map(Some);
    assert_eq!(described.parameters, kinds);
    let first = runtime.block_on(engine.query("select tier, tenant from requests limit 1")).unwrap();
    let word = |column: usize| first.batches[0].column(column).as_string::<i32>().value(0).to_string();
    let text = |word: &str| ScalarValue::Utf8(Some(word.to_string()));
    let tenants = ScalarValue::List(ScalarValue::new_list_nullable(&[text(&word(1)), text("x")], &DataType::Utf8));
    let parameters = vec![text(&word(0)), tenants, text("%"), text(&word(1))];
    let answer = runtime.block_on(engine.answer(Question { parameters, ..question })).unwrap();
    let literal = format!("select count(*) as n from requests where tier = '{}' and tenant = '{}'", word(0), word(1));
    let wanted = runtime.block_on(engine.query(&literal)).unwrap();
    let number = |batches: &[RecordBatch]| -> ArrayRef { batches[0].column(0).clone() };
    assert_eq!(&number(&answer.batches), &number(&wanted.batches));
}

/// Scenario: rows that are no batch of the table go into tables with views.
/// Guarantees: they are refused as they are without.
#[test]
fn a_batch_of_another_topic_is_refused() {
    let told = |tables: LiveTables| tables.append(Topic::Requests, faults(0..3)).unwrap_err();
    assert_eq!(told(LiveTables::for_sql(10)), told(LiveTables::new(10)));
}

/// Scenario: statements with mistakes of type beside columns of text, planned over tables with and without views.
/// Guarantees: the same words, which name no type that nobody else sees.
#[test]
fn mistakes_are_told_in_the_same_words() {
    let runtime = query_runtime(2).unwrap();
    let engines =
        [fixed_tables(), sql_tables()].map(|tables| SqlEngine::new(limits(), tables, runtime.handle().clone()));
    for sql in [
        "select tier + seq from requests",
        "select -tier from requests",
        "select sum(tier) from requests",
        "select abs(tenant) from requests",
        "select tier from requests where tier",
        "select * from requests where tenant = at and tenant in (select count(*) from faults)",
        "select tier from requests union all select at, at from requests",
        "select tenant::bigint from requests",
        "select make_array(tier, at) from requests",
        "select date_trunc('hour', tier) from requests",
        "select case when tier then 1 end from requests",
        "select tenant[1] from requests",
        "select regexp_replace(tier, 1) from requests",
    ] {
        let [plain, views] = engines.each_ref().map(|engine| runtime.block_on(engine.query(sql)).map(|a| a.schema));
        let [plain, views] = [plain, views].map(|told| told.map_err(|error| error.to_string()));
        assert_eq!(plain, views, "{sql}");
    }
}

/// Scenario: an answer of many rows that share one long text, gigabytes if each had its own.
/// Guarantees: it is refused as too large, before it is written out.
#[test]
fn text_that_rows_share_is_bounded() {
    let runtime = query_runtime(2).unwrap();
    let tables = LiveTables::for_sql(100);
    tables.append(Topic::Requests, failures(&[Some("x".repeat(400_000))])).unwrap();
    let engine = SqlEngine::new(limits(), Arc::new(tables), runtime.handle().clone());
    let sql = "select r.error from (select error, 0 as k from requests) r \
               join (select value % 1 as k from generate_series(1, 8000)) g on r.k = g.k";
    for sql in [
        sql.to_string(),
        format!("select [error] as e from ({sql})"),
        format!("select array_agg(error) as e from ({sql})"),
    ] {
        let error = runtime.block_on(engine.query(&sql)).unwrap_err();
        assert!(matches!(&error, SqlError::OutOfMemory { .. }), "{sql}: {error:?}");
    }
    let shown = runtime.block_on(engine.query(&format!("select length(error) as n from ({sql}) limit 3"))).unwrap();
    assert_eq!(shown.rows(), 3);
}
