//! Saved queries and table functions: every file is run over the fixed rows, as of a moment just after them (SPEC E2).

use std::sync::Arc;

use queries::{
    Caller, QueryResult, Question, SqlAnswers, SqlEngine, SqlError, encode, query_runtime,
    saved::{self, Values},
    snapshot::{StoredSnapshot, write_snapshot},
};

use crate::{
    fixtures::{fixed_tables, sql_tables},
    snapshot::{AS_OF, in_memory, order},
    sql::limits,
};

/// An engine over a snapshot of the fixed rows, so that `now()` is 2026-01-05T12:00:40Z.
fn engine() -> (SqlEngine, tokio::runtime::Runtime) {
    let runtime = query_runtime(2).unwrap();
    let (_, place) = in_memory();
    runtime.block_on(write_snapshot(&order(&place, AS_OF), &fixed_tables().snapshot())).unwrap();
    let stored = runtime.block_on(StoredSnapshot::open(&place)).unwrap();
    (SqlEngine::new(limits(), Arc::new(stored), runtime.handle().clone()), runtime)
}

/// Parameters under which a query that is about one request has something to say.
fn values(query: &saved::SavedQuery) -> Values {
    let about_one = query.parameters.iter().any(|parameter| parameter.name == "request");
    if about_one { Values::from([("request".to_string(), "r1".to_string())]) } else { Values::new() }
}

/// Scenario: every saved query over the fixed rows.
/// Guarantees: each plans, runs within the guards and answers something, of a snapshot as of live rows; each names the tables it reads,
/// and is opened by a question; four answers are word for word what the rows say.
#[test]
fn every_saved_query_answers() {
    let (engine, runtime) = engine();
    let live = SqlEngine::new(limits(), sql_tables(), runtime.handle().clone());
    for query in saved::all() {
        let statement = query.render(&values(query)).unwrap();
        let answer = runtime.block_on(engine.query(&statement));
        let answer = answer.unwrap_or_else(|error| panic!("queries/sql/{}.sql: {error}", query.name));
        assert!(answer.rows() > 0, "{}: no rows of the fixed ones answer it: {statement}", query.name);
        let asked = Question { as_of: Some(AS_OF), ..Question::new(statement, Caller::new("tests")) };
        let of_live = runtime.block_on(live.answer(asked)).unwrap();
        let told = |answer: &QueryResult| encode::json(&answer.schema, &answer.batches).map(String::from_utf8).unwrap();
        assert_eq!((told(&of_live), of_live.schema), (told(&answer), answer.schema), "{}", query.name);
        assert!(query.question.ends_with('?'), "{}: {:?} is no question", query.name, query.question);
        let calls = ["mrc(", "funnel(", "explain("].iter().any(|call| query.template.contains(call));
        for table in &query.tables {
            let is_read = query.template.contains(table.as_str()) || calls;
            assert!(is_read && queries::Topic::from_name(table).is_some(), "{}: tables: {table}", query.name);
        }
    }
    for (name, first) in [
        ("scaling/saturation", "2026-01-05T12:00:00.000000Z,0.25,0.25,1,6"),
        ("traffic/arrivals", "2026-01-05T12:00:00.000000Z,6,5,1,0,12320"),
        ("slo/goodput", "High,3,1,1,1,50.0,"),
        ("faults/recent", "worker,dead,1,2026-01-05T12:00:06.000000Z,"),
    ] {
        let answer =
            runtime.block_on(engine.query(&saved::find(name).unwrap().render(&Values::new()).unwrap())).unwrap();
        let csv = String::from_utf8(encode::csv(&answer.schema, &answer.batches).unwrap()).unwrap();
        assert!(csv.lines().nth(1).unwrap().starts_with(first), "{name}: {csv}");
    }
    assert!(saved::all().len() >= 30, "{} saved queries", saved::all().len());
}

/// Scenario: values of every type, right and wrong, and one that tries to be more than a value.
/// Guarantees: numbers stay numbers, a text becomes one quoted literal, whatever is in it; everything else is refused with the name,
/// the value and what would be right.
#[test]
fn parameters_are_values_and_nothing_else() {
    let slowest = saved::find("latency/slowest").unwrap();
    let with = |name: &str, value: &str| Values::from([(name.to_string(), value.to_string())]);
    assert!(slowest.render(&with("most", "3")).unwrap().ends_with("limit 3"));
    for wrong in ["", "-1", "1.5", "1; drop table slo", "1000000001", "0x10", "one"] {
        let error = slowest.render(&with("most", wrong)).unwrap_err();
        assert!(
            matches!(&error, SqlError::Plan(words) if words.contains("expected a whole number from 0")),
            "{wrong:?}: {error}"
        );
    }
    let request = saved::find("decisions/candidates").unwrap();
    let text = request.render(&with("request", "r1' or '1'='1 {request}")).unwrap();
    assert!(text.contains("request_id = 'r1'' or ''1''=''1 {request}')"), "{text}");
    let error = request.render(&with("request", &"x".repeat(2000))).unwrap_err().to_string();
    assert!(error.contains("at most 1024 bytes"), "{error}");
    assert!(request.render(&Values::new()).unwrap().contains("request_id = NULL"));
    let error = saved::find("cache/fnnel").unwrap_err().to_string();
    assert!(error.contains("did you mean \"cache/funnel\"?"), "{error}");
    assert!(slowest.text().starts_with("-- Which requests took longest"));
}

/// Scenario: table functions with arguments by place and by name, joined and renamed, and called wrongly.
/// Guarantees: the same answer both ways; wrong calls are errors that show how the function is called; the table `mrc` is still a
/// table; a statement of many calls is refused; nothing but a literal is an argument.
#[test]
fn table_functions() {
    let (engine, runtime) = engine();
    let ask = |query: &str| {
        let answer = runtime.block_on(engine.query(query))?;
        Ok::<_, SqlError>(String::from_utf8(encode::csv(&answer.schema, &answer.batches).unwrap()).unwrap())
    };
    let by_place = ask("select capacity_blocks, hit_rate from mrc('tier', 'High')").unwrap();
    assert_eq!(
        by_place,
        ask("select m.capacity_blocks, m.hit_rate from MRC(subject => 'High', scope => 'tier') m").unwrap()
    );
    assert!(by_place.lines().count() > 1, "{by_place}");
    assert_ne!(by_place, ask("select capacity_blocks, hit_rate from mrc").unwrap());
    let joined =
        ask("select f.layer, g.percent from funnel(15) f join funnel(minutes => 15) g using (layer) order by f.step")
            .unwrap();
    assert!(joined.contains("prompt,100"), "{joined}");
    assert!(ask("explain select * from explain('r1')").unwrap().contains("request_id"));
    for (wrong, says) in [
        ("select * from mrc('tier', 'High', 3)", "mrc takes at most 2 arguments: mrc(scope => all, subject => NULL)"),
        ("select * from funnel(days => 1)", "funnel has no parameter \"days\"; it has minutes, model, tier"),
        ("select * from funnel(-1)", "parameter minutes = \"-1\": expected a whole number"),
        ("select * from funnel(7 + 8)", "arguments of funnel are literals"),
        ("select * from explain(concat('r', '1'))", "arguments of explain are literals"),
        ("select * from nothing_like_it(1)", "nothing_like_it"),
    ] {
        let error = ask(wrong).unwrap_err().to_string();
        assert!(error.contains(says), "{wrong}: {error}");
    }
    let many = (0..9).map(|_| "select step from funnel()").collect::<Vec<_>>().join(" union all ");
    let error = ask(&many).unwrap_err();
    assert!(matches!(error, SqlError::Refused(_)), "{error}");
}
