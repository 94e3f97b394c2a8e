//! Rows of `pg_catalog` that never change, and its tables that never have rows: we have no indexes, constraints, triggers,
//! partitions, policies or publications.
//!
//! The columns of an empty table are those that clients name. `rewrite` turns a SELECT over an empty table into nothing before its
//! expressions are planned, so that what they call need not exist.

use arrow::{
    array::{ArrayRef, RecordBatch},
    error::ArrowError,
};

use super::{
    DATABASE_OID, INFORMATION_SCHEMA_OID, OWNER, OWNER_OID, PG_CATALOG_OID, PUBLIC_OID, SERVER_VERSION,
    relations::{Same, flag, int4, int8, no_list, text},
};

/// The function of words that mean something, which is a table here.
pub(super) const KEYWORDS: &str = "pg_get_keywords";

/// Tables with rows.
const WITH_ROWS: [&str; 9] = [
    "pg_namespace",
    "pg_database",
    "pg_roles",
    "pg_user",
    "pg_authid",
    "pg_am",
    "pg_tablespace",
    "pg_settings",
    KEYWORDS,
];

/// A table without rows: its name, columns of numbers, of texts, of flags.
type Empty = (&'static str, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

/// All of them.
const EMPTY: [Empty; 43] = [
    (
        "pg_index",
        &["indexrelid", "indrelid", "indnatts", "indnkeyatts", "indkey", "indclass", "indoption", "indcollation"],
        &["indexprs", "indpred"],
        &[
            "indisunique",
            "indisprimary",
            "indisexclusion",
            "indimmediate",
            "indisclustered",
            "indisvalid",
            "indisready",
            "indislive",
            "indisreplident",
        ],
    ),
    (
        "pg_constraint",
        &["oid", "connamespace", "conrelid", "contypid", "conindid", "conparentid", "confrelid", "conkey", "confkey"],
        &["conname", "contype", "confupdtype", "confdeltype", "confmatchtype", "conbin"],
        &["condeferrable", "condeferred", "convalidated", "conislocal"],
    ),
    ("pg_attrdef", &["oid", "adrelid", "adnum"], &["adbin"], &[]),
    ("pg_inherits", &["inhrelid", "inhparent", "inhseqno"], &[], &["inhdetachpending"]),
    (
        "pg_trigger",
        &["oid", "tgrelid", "tgfoid", "tgconstraint", "tgparentid", "tgtype"],
        &["tgname", "tgenabled"],
        &["tgisinternal"],
    ),
    (
        "pg_policy",
        &["oid", "polrelid", "polroles"],
        &["polname", "polcmd", "polqual", "polwithcheck"],
        &["polpermissive"],
    ),
    ("pg_statistic_ext", &["oid", "stxrelid", "stxnamespace", "stxstattarget"], &["stxname", "stxkind"], &[]),
    (
        "pg_publication",
        &["oid", "pubowner"],
        &["pubname"],
        &["puballtables", "pubinsert", "pubupdate", "pubdelete", "pubtruncate", "pubviaroot"],
    ),
    ("pg_publication_rel", &["oid", "prpubid", "prrelid", "prattrs"], &["prqual"], &[]),
    ("pg_publication_namespace", &["oid", "pnpubid", "pnnspid"], &[], &[]),
    ("pg_subscription", &["oid", "subdbid", "subowner"], &["subname"], &["subenabled"]),
    ("pg_foreign_table", &["ftrelid", "ftserver"], &["ftoptions"], &[]),
    ("pg_foreign_server", &["oid", "srvowner", "srvfdw"], &["srvname", "srvtype", "srvversion", "srvoptions"], &[]),
    ("pg_foreign_data_wrapper", &["oid", "fdwowner"], &["fdwname", "fdwoptions"], &[]),
    (
        "pg_proc",
        &["oid", "pronamespace", "prorettype", "proowner", "prolang", "pronargs", "proargtypes"],
        &["proname", "prokind", "prosrc", "provolatile", "proargnames", "proargmodes", "proallargtypes"],
        &["proisagg", "proretset"],
    ),
    ("pg_aggregate", &["aggfnoid"], &["aggkind"], &[]),
    ("pg_enum", &["oid", "enumtypid", "enumsortorder"], &["enumlabel"], &[]),
    ("pg_range", &["rngtypid", "rngsubtype", "rngmultitypid"], &[], &[]),
    ("pg_rewrite", &["oid", "ev_class"], &["rulename", "ev_type", "ev_enabled"], &["is_instead"]),
    ("pg_depend", &["classid", "objid", "objsubid", "refclassid", "refobjid", "refobjsubid"], &["deptype"], &[]),
    (
        "pg_sequence",
        &["seqrelid", "seqtypid", "seqstart", "seqincrement", "seqmax", "seqmin", "seqcache"],
        &[],
        &["seqcycle"],
    ),
    ("pg_sequences", &["start_value", "last_value"], &["schemaname", "sequencename", "sequenceowner"], &[]),
    (
        "pg_collation",
        &["oid", "collnamespace", "collowner", "collencoding"],
        &["collname", "collprovider", "collcollate", "collctype"],
        &["collisdeterministic"],
    ),
    ("pg_conversion", &["oid", "connamespace"], &["conname"], &[]),
    (
        "pg_extension",
        &["oid", "extowner", "extnamespace", "extconfig"],
        &["extname", "extversion"],
        &["extrelocatable"],
    ),
    ("pg_available_extensions", &[], &["name", "default_version", "installed_version", "comment"], &[]),
    ("pg_partitioned_table", &["partrelid", "partnatts", "partdefid"], &["partstrat", "partexprs"], &[]),
    ("pg_opclass", &["oid", "opcmethod", "opcnamespace", "opcintype"], &["opcname"], &["opcdefault"]),
    ("pg_operator", &["oid", "oprnamespace", "oprleft", "oprright", "oprresult"], &["oprname"], &[]),
    ("pg_cast", &["oid", "castsource", "casttarget", "castfunc"], &["castcontext"], &[]),
    ("pg_language", &["oid", "lanowner"], &["lanname"], &["lanispl", "lanpltrusted"]),
    ("pg_views", &[], &["schemaname", "viewname", "viewowner", "definition"], &[]),
    ("pg_matviews", &[], &["schemaname", "matviewname", "matviewowner", "definition"], &["ispopulated", "hasindexes"]),
    ("pg_indexes", &[], &["schemaname", "tablename", "indexname", "tablespace", "indexdef"], &[]),
    ("pg_shdescription", &["objoid", "classoid"], &["description"], &[]),
    ("pg_auth_members", &["roleid", "member", "grantor"], &[], &["admin_option"]),
    ("pg_event_trigger", &["oid"], &["evtname", "evtevent"], &[]),
    ("pg_locks", &["database", "relation", "pid"], &["locktype", "mode"], &["granted"]),
    (
        "pg_stat_activity",
        &["datid", "pid", "usesysid"],
        &["datname", "usename", "application_name", "state", "query"],
        &[],
    ),
    ("pg_stat_user_tables", &["relid", "seq_scan", "n_live_tup"], &["schemaname", "relname"], &[]),
    ("pg_cursors", &[], &["name", "statement"], &["is_holdable", "is_binary", "is_scrollable"]),
    ("pg_prepared_statements", &[], &["name", "statement"], &["from_sql"]),
    ("pg_timezone_names", &[], &["name", "abbrev"], &["is_dst"]),
];

/// What `SHOW`, `current_setting` and `pg_settings` tell. Nothing reads them: answers are in UTC and in ISO form always.
pub const SETTINGS: [(&str, &str); 24] = [
    ("application_name", ""),
    ("bytea_output", "hex"),
    ("client_encoding", "UTF8"),
    ("client_min_messages", "notice"),
    ("datestyle", "ISO, YMD"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "on"),
    ("extra_float_digits", "1"),
    ("integer_datetimes", "on"),
    ("intervalstyle", "postgres"),
    ("is_superuser", "off"),
    ("lc_collate", "C"),
    ("lc_ctype", "C"),
    ("max_identifier_length", "63"),
    ("max_index_keys", "32"),
    ("search_path", "public"),
    ("server_encoding", "UTF8"),
    ("server_version", SERVER_VERSION),
    ("server_version_num", "150000"),
    ("standard_conforming_strings", "on"),
    ("statement_timeout", "0"),
    ("timezone", "UTC"),
    ("transaction_isolation", "serializable"),
    ("transaction_read_only", "on"),
];

/// Tables of this file.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    WITH_ROWS.into_iter().chain(EMPTY.iter().map(|(name, ..)| *name))
}

/// Whether a table never has rows.
pub(super) fn is_empty(name: &str) -> bool {
    EMPTY.iter().any(|(known, ..)| *known == name)
}

/// Rows of a table of this file.
pub(super) fn table(name: &str) -> Option<Result<RecordBatch, ArrowError>> {
    if let Some((_, numbers, texts, flags)) = EMPTY.iter().find(|(known, ..)| *known == name) {
        let numbers = numbers.iter().map(|column| (*column, int8([])));
        let texts = texts.iter().map(|column| (*column, text([])));
        let flags = flags.iter().map(|column| (*column, flag([])));
        return Some(RecordBatch::try_from_iter(numbers.chain(texts).chain(flags)));
    }
    Some(match name {
        "pg_namespace" => namespaces(),
        "pg_database" => databases(),
        "pg_roles" | "pg_authid" => roles(),
        "pg_user" => users(),
        "pg_am" => RecordBatch::try_from_iter([
            ("oid", int8([2])),
            ("amname", text(["heap"])),
            ("amhandler", text(["heap_tableam_handler"])),
            ("amtype", text(["t"])),
        ]),
        "pg_tablespace" => RecordBatch::try_from_iter([
            ("oid", int8([1663])),
            ("spcname", text(["pg_default"])),
            ("spcowner", int8([OWNER_OID])),
        ]),
        "pg_settings" => settings(),
        KEYWORDS => keywords(),
        _ => return None,
    })
}

fn namespaces() -> Result<RecordBatch, ArrowError> {
    let same = Same(3);
    RecordBatch::try_from_iter([
        ("oid", int8([PG_CATALOG_OID, PUBLIC_OID, INFORMATION_SCHEMA_OID])),
        ("nspname", text(["pg_catalog", "public", "information_schema"])),
        ("nspowner", same.int8(OWNER_OID)),
        ("nspacl", no_list(same.0)),
    ])
}

fn databases() -> Result<RecordBatch, ArrowError> {
    let same = Same(1);
    RecordBatch::try_from_iter([
        ("oid", int8([DATABASE_OID])),
        ("datname", text([OWNER])),
        ("datdba", int8([OWNER_OID])),
        ("encoding", int4([6])),
        ("datlocprovider", text(["c"])),
        ("datistemplate", flag([false])),
        ("datallowconn", flag([true])),
        ("datconnlimit", int4([-1])),
        ("datfrozenxid", int8([0])),
        ("datminmxid", int8([0])),
        ("dattablespace", int8([1663])),
        ("datcollate", text(["C"])),
        ("datctype", text(["C"])),
        ("daticulocale", same.none()),
        ("datcollversion", same.none()),
        ("datacl", no_list(same.0)),
    ])
}

fn roles() -> Result<RecordBatch, ArrowError> {
    let same = Same(1);
    RecordBatch::try_from_iter([
        ("oid", int8([OWNER_OID])),
        ("rolname", text([OWNER])),
        ("rolsuper", flag([false])),
        ("rolinherit", flag([true])),
        ("rolcreaterole", flag([false])),
        ("rolcreatedb", flag([false])),
        ("rolcanlogin", flag([true])),
        ("rolreplication", flag([false])),
        ("rolbypassrls", flag([false])),
        ("rolconnlimit", int4([-1])),
        ("rolpassword", same.none()),
        ("rolvaliduntil", same.none()),
        ("rolconfig", no_list(same.0)),
    ])
}

fn users() -> Result<RecordBatch, ArrowError> {
    let same = Same(1);
    RecordBatch::try_from_iter([
        ("usename", text([OWNER])),
        ("usesysid", int8([OWNER_OID])),
        ("usecreatedb", flag([false])),
        ("usesuper", flag([false])),
        ("passwd", same.none()),
        ("valuntil", same.none()),
    ])
}

/// Words that the parser knows: reserved ones cannot be names without quotes.
fn keywords() -> Result<RecordBatch, ArrowError> {
    use datafusion::sql::sqlparser::keywords::{
        ALL_KEYWORDS, ALL_KEYWORDS_INDEX, RESERVED_FOR_COLUMN_ALIAS, RESERVED_FOR_TABLE_ALIAS,
    };
    let is_reserved: Vec<bool> = ALL_KEYWORDS_INDEX
        .iter()
        .map(|word| RESERVED_FOR_COLUMN_ALIAS.contains(word) || RESERVED_FOR_TABLE_ALIAS.contains(word))
        .collect();
    let words: Vec<String> = ALL_KEYWORDS.iter().map(|word| word.to_ascii_lowercase()).collect();
    RecordBatch::try_from_iter([
        ("word", text(words.iter().map(String::as_str))),
        ("catcode", text(is_reserved.iter().map(|reserved| if *reserved { "R" } else { "U" }))),
        ("barelabel", flag(is_reserved.iter().map(|reserved| !reserved))),
        ("catdesc", text(is_reserved.iter().map(|reserved| if *reserved { "reserved" } else { "unreserved" }))),
    ])
}

fn settings() -> Result<RecordBatch, ArrowError> {
    let same = Same(SETTINGS.len());
    let columns: [(&str, ArrayRef); 8] = [
        ("name", text(SETTINGS.map(|(name, _)| name))),
        ("setting", text(SETTINGS.map(|(_, value)| value))),
        ("unit", same.none()),
        ("category", same.text("Client")),
        ("short_desc", same.text("")),
        ("context", same.text("user")),
        ("vartype", same.text("string")),
        ("source", same.text("default")),
    ];
    RecordBatch::try_from_iter(columns)
}
