//! Functions that PostgreSQL's clients call in catalogue queries.
//!
//! They answer from what never changes: names, types and comments of our tables. Where there is nothing to tell (index definitions,
//! defaults, sizes) the answer is NULL, zero or false, as for a table that has none. Cost: O(rows) each.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use arrow::{
    array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, ListArray, StringArray},
    buffer::OffsetBuffer,
    compute::cast,
    datatypes::{DataType, Field, Int64Type},
};
use datafusion::{
    common::{ScalarValue, exec_err},
    error::Result,
    logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility},
};

use super::{
    FIRST_TABLE_OID, OWNER, SERVER_VERSION, fixed, relations,
    text::{self, parse_ident, quote_ident, quote_literal},
    types,
};
use crate::{catalog, schema::Topic};

/// What a function answers.
#[derive(Clone, Copy)]
enum Answer {
    Text(&'static str),
    NoText,
    Flag(bool),
    Number(i64),
    /// Computed, of the type that the function names for its arguments' types.
    Computed(fn(&[DataType]) -> DataType, fn(&[ArrayRef]) -> Result<ArrayRef>),
}

struct Function {
    name: &'static str,
    signature: Signature,
    answer: Answer,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(match self.answer {
            Answer::Text(_) | Answer::NoText => DataType::Utf8,
            Answer::Flag(_) => DataType::Boolean,
            Answer::Number(_) => DataType::Int64,
            Answer::Computed(kind, _) => kind(arguments),
        })
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let compute = match self.answer {
            Answer::Text(text) => return Ok(ColumnarValue::Scalar(ScalarValue::Utf8(Some(text.into())))),
            Answer::NoText => return Ok(ColumnarValue::Scalar(ScalarValue::Utf8(None))),
            Answer::Flag(flag) => return Ok(ColumnarValue::Scalar(ScalarValue::Boolean(Some(flag)))),
            Answer::Number(number) => return Ok(ColumnarValue::Scalar(ScalarValue::Int64(Some(number)))),
            Answer::Computed(_, compute) => compute,
        };
        let is_scalar = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let answer = compute(&ColumnarValue::values_to_arrays(&arguments.args)?)?;
        if is_scalar {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&answer, 0)?));
        }
        Ok(ColumnarValue::Array(answer))
    }
}

/// All of them.
pub(crate) fn functions() -> Vec<ScalarUDF> {
    let constant = CONSTANTS.iter().map(|(name, answer)| (*name, *answer));
    let computed = COMPUTED.iter().map(|(name, kind, body)| (*name, Answer::Computed(*kind, *body)));
    let version = [("version", Answer::Text(version()))];
    version
        .into_iter()
        .chain(constant)
        .chain(computed)
        .map(|(name, answer)| {
            let any = TypeSignature::OneOf(vec![TypeSignature::VariadicAny, TypeSignature::Nullary]);
            ScalarUDF::new_from_impl(Function { name, signature: Signature::new(any, Volatility::Stable), answer })
        })
        .collect()
}

fn version() -> &'static str {
    const { assert!(SERVER_VERSION.len() == 4) };
    concat!("Evenkeel ", env!("CARGO_PKG_VERSION"), " (speaks PostgreSQL 15.0)")
}

const CONSTANTS: [(&str, Answer); 54] = [
    ("current_database", Answer::Text(OWNER)),
    ("current_catalog", Answer::Text(OWNER)),
    ("current_schema", Answer::Text("public")),
    ("pg_get_userbyid", Answer::Text(OWNER)),
    ("pg_encoding_to_char", Answer::Text("UTF8")),
    ("obj_description", Answer::NoText),
    ("shobj_description", Answer::NoText),
    ("pg_get_expr", Answer::NoText),
    ("pg_get_constraintdef", Answer::NoText),
    ("pg_get_indexdef", Answer::NoText),
    ("pg_get_viewdef", Answer::NoText),
    ("pg_get_serial_sequence", Answer::NoText),
    ("pg_get_ruledef", Answer::NoText),
    ("pg_get_triggerdef", Answer::NoText),
    ("pg_get_function_result", Answer::NoText),
    ("pg_get_function_arguments", Answer::NoText),
    ("pg_get_function_identity_arguments", Answer::NoText),
    ("pg_get_functiondef", Answer::NoText),
    ("pg_get_partkeydef", Answer::NoText),
    ("pg_get_statisticsobjdef_columns", Answer::NoText),
    ("pg_tablespace_location", Answer::NoText),
    ("inet_server_addr", Answer::NoText),
    ("inet_client_addr", Answer::NoText),
    ("pg_table_is_visible", Answer::Flag(true)),
    ("pg_type_is_visible", Answer::Flag(true)),
    ("pg_function_is_visible", Answer::Flag(true)),
    ("pg_operator_is_visible", Answer::Flag(true)),
    ("pg_opclass_is_visible", Answer::Flag(true)),
    ("pg_collation_is_visible", Answer::Flag(true)),
    ("pg_conversion_is_visible", Answer::Flag(true)),
    ("pg_ts_config_is_visible", Answer::Flag(true)),
    ("pg_is_in_recovery", Answer::Flag(false)),
    ("pg_is_other_temp_schema", Answer::Flag(false)),
    ("pg_relation_is_publishable", Answer::Flag(false)),
    ("pg_has_role", Answer::Flag(false)),
    ("row_security_active", Answer::Flag(false)),
    ("pg_backend_pid", Answer::Number(0)),
    ("pg_my_temp_schema", Answer::Number(0)),
    ("pg_relation_size", Answer::Number(0)),
    ("pg_table_size", Answer::Number(0)),
    ("pg_indexes_size", Answer::Number(0)),
    ("pg_total_relation_size", Answer::Number(0)),
    ("pg_database_size", Answer::Number(0)),
    ("pg_tablespace_size", Answer::Number(0)),
    ("pg_relation_filenode", Answer::Number(0)),
    ("pg_column_size", Answer::Number(0)),
    ("pg_stat_get_numscans", Answer::Number(0)),
    ("pg_stat_get_live_tuples", Answer::Number(0)),
    ("pg_stat_get_dead_tuples", Answer::Number(0)),
    ("txid_current", Answer::Number(0)),
    ("pg_current_xact_id", Answer::Number(0)),
    ("inet_server_port", Answer::Number(0)),
    ("inet_client_port", Answer::Number(0)),
    ("pg_advisory_unlock_all", Answer::NoText),
];

type Computed = (&'static str, fn(&[DataType]) -> DataType, fn(&[ArrayRef]) -> Result<ArrayRef>);

const COMPUTED: [Computed; 24] = [
    ("pg_size_pretty", always_text, size_pretty),
    ("format_type", always_text, format_type),
    ("col_description", always_text, col_description),
    ("current_setting", always_text, |a| each_text(a, |name| setting(name).map(str::to_string))),
    ("set_config", always_text, second),
    ("quote_ident", always_text, |a| each_text(a, |name| Some(quote_ident(name)))),
    ("quote_literal", always_text, |a| each_text(a, |text| Some(quote_literal(text)))),
    ("format", always_text, format_text),
    ("array_upper", always_number, |a| bounds(a, |length| length)),
    ("array_lower", always_number, |a| bounds(a, |_| 1)),
    ("parse_ident", text_list, |a| lists(a, parse_ident)),
    ("current_schemas", text_list, |a| lists(a, |_| vec!["pg_catalog".into(), "public".into()])),
    ("to_regclass", always_number, |a| each_number(a, relation_oid)),
    ("to_regtype", always_number, |a| each_number(a, type_oid)),
    ("regclass", number_or_text, |a| either(a, "relation", (relation_oid, relation_name))),
    ("regtype", number_or_text, |a| either(a, "type", (type_oid, type_name))),
    ("regnamespace", number_or_text, |a| either(a, "schema", (schema_oid, schema_name))),
    ("regrole", number_or_text, |a| either(a, "role", (role_oid, role_name))),
    ("has_table_privilege", always_flag, privilege),
    ("has_any_column_privilege", always_flag, privilege),
    ("has_column_privilege", always_flag, privilege),
    ("has_schema_privilege", always_flag, privilege),
    ("has_database_privilege", always_flag, privilege),
    ("has_function_privilege", always_flag, privilege),
];

fn always_text(_: &[DataType]) -> DataType {
    DataType::Utf8
}

fn always_number(_: &[DataType]) -> DataType {
    DataType::Int64
}

fn always_flag(_: &[DataType]) -> DataType {
    DataType::Boolean
}

fn text_list(_: &[DataType]) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true)))
}

fn is_text(kind: &DataType) -> bool {
    matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// A name becomes a number, a number a name.
fn number_or_text(arguments: &[DataType]) -> DataType {
    if arguments.first().is_some_and(is_text) { DataType::Int64 } else { DataType::Utf8 }
}

fn argument(arguments: &[ArrayRef], at: usize, kind: &DataType) -> Result<ArrayRef> {
    match arguments.get(at) {
        Some(array) => Ok(cast(array, kind)?),
        None => exec_err!("argument {} is missing", at + 1),
    }
}

fn each_text(arguments: &[ArrayRef], body: fn(&str) -> Option<String>) -> Result<ArrayRef> {
    let texts = argument(arguments, 0, &DataType::Utf8)?;
    let answers = texts.as_string::<i32>().iter().map(|text| text.and_then(body));
    Ok(Arc::new(answers.collect::<StringArray>()))
}

fn each_number(arguments: &[ArrayRef], body: fn(&str) -> Option<i64>) -> Result<ArrayRef> {
    let texts = argument(arguments, 0, &DataType::Utf8)?;
    let answers = texts.as_string::<i32>().iter().map(|text| text.and_then(body));
    Ok(Arc::new(answers.collect::<Int64Array>()))
}

type Names = (fn(&str) -> Option<i64>, fn(i64) -> Option<String>);

/// Names to numbers, numbers to names. A name nobody has is an error, a number nobody has is its digits.
fn either(arguments: &[ArrayRef], what: &str, (oid, name): Names) -> Result<ArrayRef> {
    let Some(first) = arguments.first() else { return exec_err!("argument 1 is missing") };
    if !is_text(first.data_type()) {
        let numbers = argument(arguments, 0, &DataType::Int64)?;
        let names = numbers.as_primitive::<Int64Type>().iter();
        let names = names.map(|oid| oid.map(|oid| name(oid).unwrap_or_else(|| oid.to_string())));
        return Ok(Arc::new(names.collect::<StringArray>()));
    }
    let texts = argument(arguments, 0, &DataType::Utf8)?;
    let mut numbers = Vec::with_capacity(texts.len());
    for text in texts.as_string::<i32>() {
        let number = match text {
            None => None,
            Some(text) => match text.parse().ok().or_else(|| oid(text)) {
                Some(number) => Some(number),
                None => return exec_err!("{what} {text:?} does not exist"),
            },
        };
        numbers.push(number);
    }
    Ok(Arc::new(Int64Array::from(numbers)))
}

/// PostgreSQL's own tables that clients name as `'pg_class'::regclass`.
const SYSTEM_TABLES: [(&str, i64); 8] = [
    ("pg_class", 1259),
    ("pg_type", 1247),
    ("pg_attribute", 1249),
    ("pg_proc", 1255),
    ("pg_database", 1262),
    ("pg_namespace", 2615),
    ("pg_constraint", 2606),
    ("pg_trigger", 2620),
];

/// The last part of a name, without quotes.
fn last_part(name: &str) -> String {
    parse_ident(name).pop().unwrap_or_default()
}

fn relation_oid(name: &str) -> Option<i64> {
    let name = last_part(name);
    super::table_oid(&name).or_else(|| SYSTEM_TABLES.iter().find(|(known, _)| *known == name).map(|(_, oid)| *oid))
}

fn relation_name(oid: i64) -> Option<String> {
    let at = usize::try_from(oid - FIRST_TABLE_OID).ok();
    let ours = at.and_then(|at| catalog::names().nth(at));
    ours.or_else(|| SYSTEM_TABLES.iter().find(|(_, known)| *known == oid).map(|(name, _)| *name)).map(String::from)
}

fn type_oid(name: &str) -> Option<i64> {
    types::by_name(name).map(|kind| kind.oid)
}

fn type_name(oid: i64) -> Option<String> {
    types::by_oid(oid).map(|kind| kind.sql.to_string())
}

const SCHEMAS: [(&str, i64); 3] = [
    ("pg_catalog", super::PG_CATALOG_OID),
    ("public", super::PUBLIC_OID),
    ("information_schema", super::INFORMATION_SCHEMA_OID),
];

fn schema_oid(name: &str) -> Option<i64> {
    SCHEMAS.iter().find(|(known, _)| *known == name).map(|(_, oid)| *oid)
}

fn schema_name(oid: i64) -> Option<String> {
    SCHEMAS.iter().find(|(_, known)| *known == oid).map(|(name, _)| name.to_string())
}

fn role_oid(name: &str) -> Option<i64> {
    (name == OWNER).then_some(super::OWNER_OID)
}

fn role_name(oid: i64) -> Option<String> {
    (oid == super::OWNER_OID).then(|| OWNER.to_string())
}

fn setting(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    fixed::SETTINGS.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

fn format_type(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let oids = argument(arguments, 0, &DataType::Int64)?;
    let names = oids.as_primitive::<Int64Type>().iter();
    let names = names.map(|oid| oid.map(|oid| type_name(oid).unwrap_or_else(|| "???".into())));
    Ok(Arc::new(names.collect::<StringArray>()))
}

/// In the smallest unit of which there are less than 10,240, as PostgreSQL writes it.
fn size_pretty(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    const UNITS: [&str; 6] = ["bytes", "kB", "MB", "GB", "TB", "PB"];
    let pretty = |bytes: i64| {
        let (mut size, mut unit) = (bytes as f64, 0);
        while size.abs() >= 10_240.0 && unit + 1 < UNITS.len() {
            (size, unit) = (size / 1024.0, unit + 1);
        }
        format!("{} {}", size.round(), UNITS[unit])
    };
    let sizes = argument(arguments, 0, &DataType::Int64)?;
    let answers = sizes.as_primitive::<Int64Type>().iter().map(|bytes| bytes.map(pretty));
    Ok(Arc::new(answers.collect::<StringArray>()))
}

fn col_description(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let relations = argument(arguments, 0, &DataType::Int64)?;
    let columns = argument(arguments, 1, &DataType::Int64)?;
    let pairs = relations.as_primitive::<Int64Type>().iter().zip(columns.as_primitive::<Int64Type>());
    let comments = pairs.map(|(relation, column)| {
        let topic = Topic::ALL.get(usize::try_from(relation? - FIRST_TABLE_OID).ok()?)?;
        relations::comment(topic.schema().fields().get(usize::try_from(column? - 1).ok()?)?)
    });
    Ok(Arc::new(comments.collect::<StringArray>()))
}

/// `set_config` answers with the value given, which nothing reads.
fn second(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    argument(arguments, 1, &DataType::Utf8)
}

/// Everybody who asks may read, and nothing else.
fn privilege(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let last = argument(arguments, arguments.len().saturating_sub(1), &DataType::Utf8)?;
    let may = |wanted: &str| {
        let any =
            |one: &str| ["select", "usage", "connect", "execute"].contains(&one.trim().to_ascii_lowercase().as_str());
        wanted.split(',').any(any)
    };
    let answers = last.as_string::<i32>().iter().map(|wanted| wanted.map(may));
    Ok(Arc::new(answers.collect::<BooleanArray>()))
}

/// Each row's format with its values.
fn format_text(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let texts = (0..arguments.len()).map(|at| argument(arguments, at, &DataType::Utf8)).collect::<Result<Vec<_>>>()?;
    let texts: Vec<&StringArray> = texts.iter().map(|text| text.as_string::<i32>()).collect();
    let Some((formats, values)) = texts.split_first() else { return exec_err!("argument 1 is missing") };
    let row = |(at, format): (usize, Option<&str>)| -> Result<Option<String>> {
        let values: Vec<Option<&str>> =
            values.iter().map(|column| column.is_valid(at).then(|| column.value(at))).collect();
        format.map(|format| text::format(format, &values).or_else(|words| exec_err!("{words}"))).transpose()
    };
    Ok(Arc::new(formats.iter().enumerate().map(row).collect::<Result<StringArray>>()?))
}

/// First or last place of each list, which count from 1. NULL of an empty list, and in every dimension but the first.
fn bounds(arguments: &[ArrayRef], place: fn(i64) -> i64) -> Result<ArrayRef> {
    let dimensions = argument(arguments, 1, &DataType::Int64)?;
    let text_lists = DataType::new_list(DataType::Utf8, true);
    let lists = argument(arguments, 0, &text_lists)?;
    let lists = lists.as_list::<i32>();
    let row = |(at, dimension): (usize, Option<i64>)| {
        let length = lists.is_valid(at).then(|| i64::from(lists.value_length(at)))?;
        (dimension == Some(1) && length > 0).then(|| place(length))
    };
    Ok(Arc::new(dimensions.as_primitive::<Int64Type>().iter().enumerate().map(row).collect::<Int64Array>()))
}

/// A list of texts for each value.
fn lists(arguments: &[ArrayRef], body: fn(&str) -> Vec<String>) -> Result<ArrayRef> {
    let texts = argument(arguments, 0, &DataType::Utf8)?;
    let lists: Vec<Vec<String>> = texts.as_string::<i32>().iter().map(|text| body(text.unwrap_or_default())).collect();
    let offsets = OffsetBuffer::from_lengths(lists.iter().map(Vec::len));
    let values: StringArray = lists.into_iter().flatten().map(Some).collect();
    let item = Arc::new(Field::new_list_field(DataType::Utf8, true));
    Ok(Arc::new(ListArray::try_new(item, offsets, Arc::new(values), None)?))
}
