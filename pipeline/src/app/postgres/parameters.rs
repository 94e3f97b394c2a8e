//! Bound values as the engine takes them, in text and in binary form.
//!
//! The type is the one the client named, else the one the engine expects, else text. Text is cast as SQL casts it. Errors name the
//! parameter; a type that is not known in binary form says so (22P03).

use arrow::datatypes::{DataType, TimeUnit};
use pgwire::{
    api::{Type, portal::Portal},
    error::PgWireResult,
};
use queries::ScalarValue;

use super::errors;

/// PostgreSQL counts days and microseconds from the first of January 2000.
const EPOCH_DAYS: i32 = 10_957;
const EPOCH_MICROS: i64 = EPOCH_DAYS as i64 * 86_400_000_000;
/// Digits after the point of a number that comes as `numeric`.
const NUMERIC_SCALE: i8 = 10;

/// The type of ours that a type of PostgreSQL is read as.
pub(super) fn arrow_of(kind: &Type) -> Option<DataType> {
    let list = |item: DataType| Some(DataType::new_list(item, true));
    Some(match *kind {
        Type::BOOL => DataType::Boolean,
        Type::INT2 => DataType::Int16,
        Type::INT4 => DataType::Int32,
        Type::INT8 | Type::OID => DataType::Int64,
        Type::FLOAT4 => DataType::Float32,
        Type::FLOAT8 => DataType::Float64,
        Type::NUMERIC => DataType::Decimal128(38, NUMERIC_SCALE),
        Type::TEXT
        | Type::VARCHAR
        | Type::BPCHAR
        | Type::NAME
        | Type::UNKNOWN
        | Type::JSON
        | Type::JSONB
        | Type::UUID => DataType::Utf8,
        Type::BYTEA => DataType::Binary,
        Type::TIMESTAMPTZ => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        Type::TIMESTAMP => DataType::Timestamp(TimeUnit::Microsecond, None),
        Type::DATE => DataType::Date32,
        Type::TIME => DataType::Time64(TimeUnit::Microsecond),
        Type::INTERVAL => DataType::Interval(arrow::datatypes::IntervalUnit::MonthDayNano),
        Type::INT2_ARRAY => return list(DataType::Int16),
        Type::INT4_ARRAY => return list(DataType::Int32),
        Type::INT8_ARRAY => return list(DataType::Int64),
        Type::FLOAT8_ARRAY => return list(DataType::Float64),
        Type::TEXT_ARRAY | Type::VARCHAR_ARRAY => return list(DataType::Utf8),
        _ => return None,
    })
}

/// A parameter of a type that has no value yet, for describing.
pub(super) fn blank(kind: Option<&Type>, expected: Option<&DataType>) -> ScalarValue {
    let wanted = kind.and_then(arrow_of).or_else(|| expected.cloned()).unwrap_or(DataType::Utf8);
    ScalarValue::try_from(&wanted).unwrap_or(ScalarValue::Utf8(None))
}

/// The values of a portal. `expected`: what the engine takes each parameter for.
pub(super) fn values<S: Clone>(portal: &Portal<S>, expected: &[Option<DataType>]) -> PgWireResult<Vec<ScalarValue>> {
    let wanted = expected.len().max(portal.statement.parameter_types.len());
    if portal.parameters.len() != wanted {
        let given = portal.parameters.len();
        let words = format!("bind message supplies {given} parameters, but the statement requires {wanted}");
        return Err(errors::user("ERROR", "08P01", &words));
    }
    (0..wanted).map(|at| value(portal, at, expected.get(at).and_then(Option::as_ref))).collect()
}

fn value<S: Clone>(portal: &Portal<S>, at: usize, expected: Option<&DataType>) -> PgWireResult<ScalarValue> {
    let named = portal.statement.parameter_types.get(at).cloned().flatten().filter(|kind| *kind != Type::UNKNOWN);
    let Some(bytes) = &portal.parameters[at] else { return Ok(blank(named.as_ref(), expected)) };
    let wrong = |code: &str, words: &str| errors::user("ERROR", code, &format!("parameter ${}: {words}", at + 1));
    let is_text = match &portal.parameter_format {
        pgwire::api::portal::Format::Individual(codes) => codes.get(at).is_none_or(|code| *code == 0),
        format => format.is_text(at),
    };
    let kind = named.clone().or_else(|| expected.and_then(pg_of)).unwrap_or(Type::TEXT);
    let target = match &named {
        Some(named) => arrow_of(named),
        None => Some(expected.cloned().unwrap_or(DataType::Utf8)),
    };
    let Some(target) = target else {
        return Err(wrong("0A000", &format!("values of type {} are not taken; cast them to text", kind.name())));
    };
    let value = if let Some(list) = list(portal, at, &kind)? {
        list
    } else if is_text {
        let text = std::str::from_utf8(bytes).map_err(|_| wrong("22021", "the text is not UTF-8"))?;
        ScalarValue::Utf8(Some(in_part(&target, text).to_string()))
    } else {
        match binary(&kind, bytes) {
            Some(value) => value,
            None => return Err(wrong("22P03", &format!("not a {} in binary form", kind.name()))),
        }
    };
    value.cast_to(&target).map_err(|error| wrong("22P02", &error.to_string()))
}

/// The part of a text that counts for a date, a time, or a timestamp without time zone: drivers write the whole moment with its zone,
/// and PostgreSQL leaves out what the type does not have.
fn in_part<'a>(target: &DataType, text: &'a str) -> &'a str {
    let days = text.find([' ', 'T']).unwrap_or(text.len());
    let zone = |from: usize| text[from..].find(['+', '-', 'Z', 'z']).map_or(text.len(), |at| from + at);
    match target {
        DataType::Date32 => &text[..days],
        DataType::Time64(_) => text[..zone(0)].trim_end(),
        DataType::Timestamp(_, None) => text[..zone(days)].trim_end(),
        _ => text,
    }
}

/// PostgreSQL's type for what the engine expects.
pub(super) fn pg_of(expected: &DataType) -> Option<Type> {
    arrow_pg::datatypes::into_pg_type(expected).ok().filter(|kind| *kind != Type::UNKNOWN)
}

/// A list, in either form.
fn list<S: Clone>(portal: &Portal<S>, at: usize, kind: &Type) -> PgWireResult<Option<ScalarValue>> {
    let of = |values: Vec<ScalarValue>, item: DataType| ScalarValue::List(ScalarValue::new_list(&values, &item, true));
    Ok(Some(match *kind {
        Type::INT2_ARRAY => {
            let values = portal.parameter::<Vec<Option<i16>>>(at, kind)?.unwrap_or_default();
            of(values.into_iter().map(ScalarValue::Int16).collect(), DataType::Int16)
        }
        Type::INT4_ARRAY => {
            let values = portal.parameter::<Vec<Option<i32>>>(at, kind)?.unwrap_or_default();
            of(values.into_iter().map(ScalarValue::Int32).collect(), DataType::Int32)
        }
        Type::INT8_ARRAY => {
            let values = portal.parameter::<Vec<Option<i64>>>(at, kind)?.unwrap_or_default();
            of(values.into_iter().map(ScalarValue::Int64).collect(), DataType::Int64)
        }
        Type::FLOAT8_ARRAY => {
            let values = portal.parameter::<Vec<Option<f64>>>(at, kind)?.unwrap_or_default();
            of(values.into_iter().map(ScalarValue::Float64).collect(), DataType::Float64)
        }
        Type::TEXT_ARRAY | Type::VARCHAR_ARRAY => {
            let values = portal.parameter::<Vec<Option<String>>>(at, kind)?.unwrap_or_default();
            of(values.into_iter().map(ScalarValue::Utf8).collect(), DataType::Utf8)
        }
        _ => return Ok(None),
    }))
}

/// A value in binary form. `None`: the bytes are not one, or the form is not known.
fn binary(kind: &Type, bytes: &[u8]) -> Option<ScalarValue> {
    let wide = || Some(i64::from_be_bytes(bytes.try_into().ok()?));
    let middle = || Some(i32::from_be_bytes(bytes.try_into().ok()?));
    Some(match *kind {
        Type::BOOL => ScalarValue::Boolean(Some(*bytes.first()? != 0)),
        Type::INT2 => ScalarValue::Int16(Some(i16::from_be_bytes(bytes.try_into().ok()?))),
        Type::INT4 => ScalarValue::Int32(Some(middle()?)),
        Type::INT8 => ScalarValue::Int64(Some(wide()?)),
        Type::OID => ScalarValue::Int64(Some(i64::from(middle()? as u32))),
        Type::FLOAT4 => ScalarValue::Float32(Some(f32::from_be_bytes(bytes.try_into().ok()?))),
        Type::FLOAT8 => ScalarValue::Float64(Some(f64::from_be_bytes(bytes.try_into().ok()?))),
        Type::NUMERIC => ScalarValue::Utf8(Some(numeric(bytes)?)),
        Type::TIMESTAMPTZ => {
            ScalarValue::TimestampMicrosecond(Some(wide()?.checked_add(EPOCH_MICROS)?), Some("UTC".into()))
        }
        Type::TIMESTAMP => ScalarValue::TimestampMicrosecond(Some(wide()?.checked_add(EPOCH_MICROS)?), None),
        Type::DATE => ScalarValue::Date32(Some(middle()?.checked_add(EPOCH_DAYS)?)),
        Type::TIME => ScalarValue::Time64Microsecond(Some(wide()?)),
        Type::BYTEA => ScalarValue::Binary(Some(bytes.to_vec())),
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN | Type::JSON => {
            ScalarValue::Utf8(Some(std::str::from_utf8(bytes).ok()?.to_string()))
        }
        Type::JSONB => ScalarValue::Utf8(Some(std::str::from_utf8(bytes.strip_prefix(&[1])?).ok()?.to_string())),
        _ => return None,
    })
}

/// A `numeric` in binary form as decimal digits: groups of four digits with the weight of the first.
fn numeric(bytes: &[u8]) -> Option<String> {
    let word = |at: usize| Some(i16::from_be_bytes(bytes.get(at * 2..at * 2 + 2)?.try_into().ok()?));
    let (groups, weight, sign) = (word(0)?, word(1)?, word(2)?);
    if groups < 0 || bytes.len() != 8 + groups as usize * 2 || !(-20..=20).contains(&weight) {
        return None;
    }
    let group = |power: i16| -> Option<i16> {
        match usize::try_from(weight - power) {
            Ok(at) if at < groups as usize => word(4 + at),
            _ => Some(0),
        }
    };
    let mut text = if sign == 0x4000 { "-".to_string() } else { String::new() };
    if sign != 0 && sign != 0x4000 {
        return None;
    }
    for power in (0..=weight.max(0)).rev() {
        text.push_str(&format!("{:04}", group(power)?));
    }
    text.push('.');
    let last = weight - groups + 1;
    for power in (last.min(-1)..=-1).rev() {
        text.push_str(&format!("{:04}", group(power)?));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: dates and times as pgjdbc writes them, with a zone that their type has not. Guarantees: it is left out.
    #[test]
    fn zones_are_left_out() {
        let naive = DataType::Timestamp(TimeUnit::Microsecond, None);
        let zoned = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let time = DataType::Time64(TimeUnit::Microsecond);
        assert_eq!(in_part(&DataType::Date32, "2026-01-31 +01"), "2026-01-31");
        assert_eq!(in_part(&DataType::Date32, "2026-01-31"), "2026-01-31");
        assert_eq!(in_part(&time, "12:34:56.5+01"), "12:34:56.5");
        assert_eq!(in_part(&naive, "2026-01-31 12:34:56.5-05:30"), "2026-01-31 12:34:56.5");
        assert_eq!(in_part(&naive, "2026-01-31"), "2026-01-31");
        assert_eq!(in_part(&zoned, "2026-01-31 12:34:56.5+01"), "2026-01-31 12:34:56.5+01");
        assert_eq!(in_part(&DataType::Utf8, " 2026 + b\n"), " 2026 + b\n");
    }

    /// Scenario: numbers as PostgreSQL's drivers write them. Guarantees: the digits are theirs; damaged bytes are refused.
    #[test]
    fn numerics_are_read() {
        let bytes = |words: &[i16]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        assert_eq!(numeric(&bytes(&[2, 1, 0, 0, 1, 2345])).unwrap(), "00012345.0000");
        assert_eq!(numeric(&bytes(&[2, 0, 0x4000, 2, 12, 5000])).unwrap(), "-0012.5000");
        assert_eq!(numeric(&bytes(&[1, -1, 0, 4, 1])).unwrap(), "0000.0001");
        assert_eq!(numeric(&bytes(&[0, 0, 0, 0])).unwrap(), "0000.0000");
        assert_eq!(numeric(&bytes(&[2, 1, 0, 0, 1])), None);
        assert_eq!(numeric(&[0]), None);
    }
}
