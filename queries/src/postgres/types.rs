//! PostgreSQL's types as far as our columns and clients' catalogue queries need them.
//!
//! Numbers and names are PostgreSQL's own and never change. Nested columns (structs, lists of structs) are `json`.

use arrow::datatypes::DataType;

/// A type: number, name in `pg_type`, name in SQL, length (-1: varies), category, number of its elements' type (0: none).
#[derive(Debug, Clone, Copy)]
pub(super) struct PgType {
    pub(super) oid: i64,
    pub(super) name: &'static str,
    pub(super) sql: &'static str,
    pub(super) length: i16,
    pub(super) category: &'static str,
    pub(super) element: i64,
}

const fn of(oid: i64, name: &'static str, sql: &'static str, length: i16, category: &'static str) -> PgType {
    PgType { oid, name, sql, length, category, element: 0 }
}

const fn array(oid: i64, name: &'static str, sql: &'static str, element: i64) -> PgType {
    PgType { oid, name, sql, length: -1, category: "A", element }
}

pub(super) const BOOL: i64 = 16;
pub(super) const INT2: i64 = 21;
pub(super) const INT4: i64 = 23;
pub(super) const INT8: i64 = 20;
pub(super) const TEXT: i64 = 25;
pub(super) const JSON: i64 = 114;
pub(super) const FLOAT4: i64 = 700;
pub(super) const FLOAT8: i64 = 701;
pub(super) const UNKNOWN: i64 = 705;
pub(super) const DATE: i64 = 1082;
pub(super) const TIME: i64 = 1083;
pub(super) const TIMESTAMP: i64 = 1114;
pub(super) const TIMESTAMPTZ: i64 = 1184;
pub(super) const INTERVAL: i64 = 1186;
pub(super) const NUMERIC: i64 = 1700;
pub(super) const BYTEA: i64 = 17;

/// All of them.
pub(super) const ALL: [PgType; 50] = [
    of(BOOL, "bool", "boolean", 1, "B"),
    of(BYTEA, "bytea", "bytea", -1, "U"),
    of(18, "char", "\"char\"", 1, "Z"),
    of(19, "name", "name", 64, "S"),
    of(INT8, "int8", "bigint", 8, "N"),
    of(INT2, "int2", "smallint", 2, "N"),
    of(INT4, "int4", "integer", 4, "N"),
    of(24, "regproc", "regproc", 4, "N"),
    of(TEXT, "text", "text", -1, "S"),
    of(26, "oid", "oid", 4, "N"),
    of(27, "tid", "tid", 6, "U"),
    of(28, "xid", "xid", 4, "U"),
    of(29, "cid", "cid", 4, "U"),
    of(JSON, "json", "json", -1, "U"),
    of(FLOAT4, "float4", "real", 4, "N"),
    of(FLOAT8, "float8", "double precision", 8, "N"),
    of(UNKNOWN, "unknown", "unknown", -2, "X"),
    of(1042, "bpchar", "character", -1, "S"),
    of(1043, "varchar", "character varying", -1, "S"),
    of(DATE, "date", "date", 4, "D"),
    of(TIME, "time", "time without time zone", 8, "D"),
    of(TIMESTAMP, "timestamp", "timestamp without time zone", 8, "D"),
    of(TIMESTAMPTZ, "timestamptz", "timestamp with time zone", 8, "D"),
    of(INTERVAL, "interval", "interval", 16, "T"),
    of(NUMERIC, "numeric", "numeric", -1, "N"),
    of(2205, "regclass", "regclass", 4, "N"),
    of(2206, "regtype", "regtype", 4, "N"),
    of(2249, "record", "record", -1, "P"),
    of(2950, "uuid", "uuid", 16, "U"),
    of(3802, "jsonb", "jsonb", -1, "U"),
    array(199, "_json", "json[]", JSON),
    array(1000, "_bool", "boolean[]", BOOL),
    array(1001, "_bytea", "bytea[]", BYTEA),
    array(1003, "_name", "name[]", 19),
    array(1005, "_int2", "smallint[]", INT2),
    array(1007, "_int4", "integer[]", INT4),
    array(1009, "_text", "text[]", TEXT),
    array(1015, "_varchar", "character varying[]", 1043),
    array(1016, "_int8", "bigint[]", INT8),
    array(1021, "_float4", "real[]", FLOAT4),
    array(1022, "_float8", "double precision[]", FLOAT8),
    array(1028, "_oid", "oid[]", 26),
    array(1115, "_timestamp", "timestamp without time zone[]", TIMESTAMP),
    array(1182, "_date", "date[]", DATE),
    array(1183, "_time", "time without time zone[]", TIME),
    array(1185, "_timestamptz", "timestamp with time zone[]", TIMESTAMPTZ),
    array(1187, "_interval", "interval[]", INTERVAL),
    array(1231, "_numeric", "numeric[]", NUMERIC),
    array(2287, "_record", "record[]", 2249),
    array(2951, "_uuid", "uuid[]", 2950),
];

/// The type of that number.
pub(super) fn by_oid(oid: i64) -> Option<&'static PgType> {
    ALL.iter().find(|known| known.oid == oid)
}

/// The type of that name, as `pg_type` or as SQL calls it.
pub(super) fn by_name(name: &str) -> Option<&'static PgType> {
    let name = name.strip_prefix("pg_catalog.").unwrap_or(name);
    ALL.iter().find(|known| known.name == name || known.sql == name)
}

/// Number of the array type over an element type, 0 if there is none.
pub(super) fn array_of(element: i64) -> i64 {
    ALL.iter().find(|known| known.element == element).map_or(0, |known| known.oid)
}

/// Number of PostgreSQL's type for a column of ours.
pub fn of_arrow(data_type: &DataType) -> i64 {
    match data_type {
        DataType::Boolean => BOOL,
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => INT2,
        DataType::Int32 | DataType::UInt16 => INT4,
        DataType::Int64 | DataType::UInt32 => INT8,
        DataType::UInt64 | DataType::Decimal128(..) => NUMERIC,
        DataType::Float16 | DataType::Float32 => FLOAT4,
        DataType::Float64 => FLOAT8,
        DataType::Timestamp(_, Some(_)) => TIMESTAMPTZ,
        DataType::Timestamp(_, None) => TIMESTAMP,
        DataType::Date32 | DataType::Date64 => DATE,
        DataType::Time32(_) | DataType::Time64(_) => TIME,
        DataType::Interval(_) | DataType::Duration(_) => INTERVAL,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => BYTEA,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => TEXT,
        DataType::Dictionary(_, value) => of_arrow(value),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            match of_arrow(item.data_type()) {
                JSON => JSON,
                UNKNOWN => array_of(TEXT),
                // A list of lists is no array type of PostgreSQL's.
                element => Some(array_of(element)).filter(|array| *array != 0).unwrap_or(JSON),
            }
        }
        DataType::Struct(_) | DataType::Map(..) => JSON,
        _ => UNKNOWN,
    }
}
