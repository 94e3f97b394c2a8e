// The PostgreSQL wire as JDBC tools see it (DBeaver, Metabase): PostgreSQL's own driver, pgjdbc (SPEC E2).
//
// EVENKEEL_PG is HOST:PORT, EVENKEEL_TENANT and EVENKEEL_KEY the user and its password. The server has the simulated model and
// has answered requests. Run with the driver on the class path: `java -cp postgresql.jar PostgresClient.java`.
// Prints `ok NAME` per check, runs all of them, and closes with `N passed, M failed`; exit code 1 if any failed.

import java.math.BigDecimal;
import java.sql.*;
import java.time.*;
import java.util.*;

public class PostgresClient {
    static final String PLACE = System.getenv("EVENKEEL_PG"), TENANT = System.getenv("EVENKEEL_TENANT"), KEY = System.getenv("EVENKEEL_KEY");
    /// Runs until it is stopped.
    static final String ENDLESS = "select sum(value) from generate_series(1, 1000000000000)";

    interface Check { void run() throws Exception; }

    static Connection connect(String... options) throws SQLException {
        Properties properties = new Properties();
        properties.setProperty("user", TENANT);
        properties.setProperty("password", KEY);
        for (int at = 0; at < options.length; at += 2) properties.setProperty(options[at], options[at + 1]);
        return DriverManager.getConnection("jdbc:postgresql://" + PLACE + "/evenkeel", properties);
    }

    static void same(Object got, Object wanted, String what) {
        if (!Objects.equals(got, wanted)) throw new AssertionError(what + " is " + got + ", expected " + wanted);
    }

    static void refused(String state, Check check) throws Exception {
        try {
            check.run();
        } catch (SQLException error) {
            same(error.getSQLState(), state, "the SQLSTATE of <" + error.getMessage() + ">");
            return;
        }
        throw new AssertionError("nothing was refused, expected SQLSTATE " + state);
    }

    /// Rows as texts, columns by name, as JDBC finds them.
    static List<Map<String, String>> rows(ResultSet answer) throws SQLException {
        List<Map<String, String>> rows = new ArrayList<>();
        ResultSetMetaData columns = answer.getMetaData();
        while (answer.next()) {
            Map<String, String> row = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
            for (int at = 1; at <= columns.getColumnCount(); at++) row.put(columns.getColumnLabel(at), answer.getString(at));
            rows.add(row);
        }
        answer.close();
        return rows;
    }

    /// Rows as values.
    static List<List<Object>> values(ResultSet answer) throws SQLException {
        List<List<Object>> rows = new ArrayList<>();
        while (answer.next()) {
            List<Object> row = new ArrayList<>();
            for (int at = 1; at <= answer.getMetaData().getColumnCount(); at++) {
                Object value = answer.getObject(at);
                row.add(value instanceof Array ? Arrays.asList((Object[]) ((Array) value).getArray()) : value);
            }
            rows.add(row);
        }
        answer.close();
        return rows;
    }

    static Object one(Connection connection, String statement) throws SQLException {
        try (Statement asked = connection.createStatement(); ResultSet answer = asked.executeQuery(statement)) {
            if (!answer.next()) throw new AssertionError("no row: " + statement);
            return answer.getObject(1);
        }
    }

    static void logsIn() throws Exception {
        try (Connection connection = connect()) {
            same(connection.isValid(5), true, "validity");
            DatabaseMetaData about = connection.getMetaData();
            same(about.getDatabaseProductName(), "PostgreSQL", "product");
            same(about.getDatabaseMajorVersion(), 15, "major version");
            same(about.getUserName(), TENANT, "user");
            same(connection.getCatalog(), "evenkeel", "catalog");
            same(connection.getSchema(), "public", "schema");
            same(connection.getTransactionIsolation(), Connection.TRANSACTION_SERIALIZABLE, "isolation");
        }
        refused("28P01", () -> connect("password", "wrong").close());
        refused("28P01", () -> connect("user", "nobody").close());
    }

    static void describesTables() throws Exception {
        try (Connection connection = connect()) {
            DatabaseMetaData about = connection.getMetaData();
            List<String> schemas = new ArrayList<>();
            for (Map<String, String> row : rows(about.getSchemas())) schemas.add(row.get("TABLE_SCHEM"));
            same(schemas, List.of("information_schema", "pg_catalog", "public"), "schemas");
            same(rows(about.getSchemas(null, "pub%")).size(), 1, "schemas by pattern");
            same(rows(about.getCatalogs()).get(0).get("TABLE_CAT"), "evenkeel", "catalogs");
            same(rows(about.getTableTypes()).isEmpty(), false, "no table types");
            Map<String, String> table = rows(about.getTables(null, "public", "requests", new String[] {"TABLE"})).get(0);
            same(table.get("TABLE_NAME") + " " + table.get("TABLE_TYPE"), "requests TABLE", "the table");
            int all = rows(about.getTables(null, null, "%", new String[] {"TABLE", "VIEW", "PARTITIONED TABLE", "FOREIGN TABLE", "MATERIALIZED VIEW"})).size();
            same(all > 20, true, all + " tables: more than 20");
            same(rows(about.getTables("evenkeel", "public", "%", null)).size(), all, "tables of all types");
            Map<String, Map<String, String>> columns = new HashMap<>();
            for (Map<String, String> row : rows(about.getColumns(null, "public", "requests", "%"))) columns.put(row.get("COLUMN_NAME"), row);
            same(columns.get("at").get("TYPE_NAME"), "timestamptz", "type of at");
            same(columns.get("at").get("DATA_TYPE"), String.valueOf(Types.TIMESTAMP), "JDBC's type of at");
            same(columns.get("at").get("IS_NULLABLE"), "NO", "at may be null");
            same(columns.get("prompt_tokens").get("REMARKS"), "prompt length [tokens]", "remarks");
            same(rows(about.getColumns(null, "public", "%", "%")).size() > 300, true, "columns of all tables");
        }
    }

    static void describesTheRest() throws Exception {
        try (Connection connection = connect()) {
            DatabaseMetaData about = connection.getMetaData();
            Set<String> types = new HashSet<>();
            for (Map<String, String> row : rows(about.getTypeInfo())) types.add(row.get("TYPE_NAME"));
            same(types.containsAll(List.of("int8", "text", "timestamptz", "float8", "bool", "numeric")), true, "types " + types);
            same(rows(about.getPrimaryKeys(null, "public", "requests")).size(), 0, "primary keys");
            same(rows(about.getImportedKeys(null, "public", "requests")).size(), 0, "imported keys");
            same(rows(about.getExportedKeys(null, "public", "requests")).size(), 0, "exported keys");
            same(rows(about.getCrossReference(null, "public", "requests", null, "public", "decisions")).size(), 0, "cross reference");
            same(rows(about.getIndexInfo(null, "public", "requests", false, true)).size(), 0, "indexes");
            same(rows(about.getBestRowIdentifier(null, "public", "requests", DatabaseMetaData.bestRowSession, true)).size(), 0, "row identifiers");
            same(rows(about.getVersionColumns(null, "public", "requests")).size(), 1, "version columns");
            same(rows(about.getProcedures(null, "public", "%")).size(), 0, "procedures");
            same(rows(about.getProcedureColumns(null, "public", "%", "%")).size(), 0, "columns of procedures");
            same(rows(about.getFunctions(null, "public", "%")).size(), 0, "functions");
            same(rows(about.getFunctionColumns(null, "public", "%", "%")).size(), 0, "columns of functions");
            same(rows(about.getUDTs(null, "public", "%", null)).size(), 0, "types of users");
            rows(about.getTablePrivileges(null, "public", "requests"));
            rows(about.getColumnPrivileges(null, "public", "requests", "%"));
            rows(about.getClientInfoProperties());
            same(about.getMaxColumnNameLength(), 63, "longest column name");
            same(about.getSQLKeywords() == null, false, "no keywords");
            about.getMaxConnections();
        }
    }

    static final class Bound {
        final String type; final int kind; final Object value, wanted;
        Bound(String type, int kind, Object value, Object wanted) { this.type = type; this.kind = kind; this.value = value; this.wanted = wanted; }
    }

    /// Each usual type there and back, unprepared and prepared (from the fifth time on by the server, in binary form), and as NULL.
    static void bindsParameters() throws Exception {
        Instant moment = Instant.parse("2026-01-31T12:34:56.789012Z");
        List<Bound> all = List.of(
            new Bound("smallint", Types.SMALLINT, (short) -7, -7),
            new Bound("int", Types.INTEGER, 42, 42),
            new Bound("bigint", Types.BIGINT, 1L << 60, 1L << 60),
            new Bound("real", Types.REAL, 1.5f, 1.5f),
            new Bound("double precision", Types.DOUBLE, -2.25, -2.25),
            new Bound("text", Types.VARCHAR, "it's ä\n", "it's ä\n"),
            new Bound("boolean", Types.BOOLEAN, true, true),
            new Bound("numeric", Types.NUMERIC, new BigDecimal("-12345.6789"), new BigDecimal("-12345.6789")),
            new Bound("date", Types.DATE, java.sql.Date.valueOf("2026-01-31"), java.sql.Date.valueOf("2026-01-31")),
            new Bound("timestamp with time zone", Types.TIMESTAMP_WITH_TIMEZONE, moment.atOffset(ZoneOffset.UTC), Timestamp.from(moment)),
            new Bound("timestamp", Types.TIMESTAMP, LocalDateTime.parse("2026-01-31T12:34:56.789"), Timestamp.valueOf("2026-01-31 12:34:56.789")),
            new Bound("time", Types.TIME, LocalTime.parse("12:34:56"), Time.valueOf("12:34:56")));
        try (Connection connection = connect()) {
            for (Bound bound : all) {
                for (String statement : List.of("select ?::" + bound.type + " as v", "select cast(? as " + bound.type + ") as v")) {
                    try (PreparedStatement asked = connection.prepareStatement(statement)) {
                        for (int time = 1; time <= 8; time++) {
                            asked.setObject(1, bound.value);
                            try (ResultSet answer = asked.executeQuery()) {
                                answer.next();
                                Object got = answer.getObject(1);
                                if (got instanceof BigDecimal) got = ((BigDecimal) got).stripTrailingZeros();
                                same(got, bound.wanted, statement + " at the run of number " + time);
                            } catch (SQLException error) {
                                throw new AssertionError(statement + ", run " + time + ": " + error.getMessage());
                            }
                        }
                        asked.setNull(1, bound.kind);
                        try (ResultSet answer = asked.executeQuery()) {
                            answer.next();
                            same(answer.getObject(1), null, "null of " + statement);
                        } catch (SQLException error) {
                            throw new AssertionError(statement + ", null: " + error.getMessage());
                        }
                    }
                }
            }
        }
    }

    /// Parameters against columns, without casts, as report builders write them.
    static void comparesColumns() throws Exception {
        try (Connection connection = connect();
             PreparedStatement asked = connection.prepareStatement(
                 "select count(*) as n from requests where event = ? and prompt_tokens > ? and prompt_tokens < ? and at > ? and at < ? and gap_us is not distinct from ? and ? = 1.5")) {
            for (int time = 1; time <= 8; time++) {
                asked.setString(1, "accepted");
                asked.setInt(2, 0);
                asked.setLong(3, 1L << 40);
                asked.setTimestamp(4, Timestamp.from(Instant.now().minusSeconds(3600)));
                asked.setObject(5, OffsetDateTime.now().plusHours(1));
                asked.setNull(6, Types.BIGINT);
                asked.setDouble(7, 1.5);
                try (ResultSet answer = asked.executeQuery()) {
                    answer.next();
                    answer.getLong("n");
                }
            }
        }
        try (Connection connection = connect();
             PreparedStatement asked = connection.prepareStatement("select event, count(*) as n from requests where event = any(?) group by event limit ?")) {
            for (int time = 1; time <= 8; time++) {
                asked.setArray(1, connection.createArrayOf("text", new String[] {"finished", "x"}));
                asked.setInt(2, 10);
                same(rows(asked.executeQuery()).get(0).get("event"), "finished", "an event");
            }
        }
    }

    /// Every column of every table, as text and in binary form: the same values.
    static void everyColumnComes() throws Exception {
        try (Connection text = connect("binaryTransfer", "false"); Connection binary = connect("prepareThreshold", "-1")) {
            List<String> tables = new ArrayList<>();
            for (Map<String, String> row : rows(text.getMetaData().getTables(null, "public", "%", null))) tables.add(row.get("TABLE_NAME"));
            for (String table : tables) {
                String statement = "select * from " + table + " order by 1 limit 20";
                try (PreparedStatement one = text.prepareStatement(statement); PreparedStatement other = binary.prepareStatement(statement)) {
                    same(values(other.executeQuery()), values(one.executeQuery()), "rows of " + table + " in binary form");
                } catch (SQLException error) {
                    throw new AssertionError(table + ": " + error.getMessage());
                }
            }
            String statement = "select * from requests order by at, seq limit 50";
            try (PreparedStatement one = text.prepareStatement(statement); PreparedStatement other = binary.prepareStatement(statement)) {
                same(values(other.executeQuery()), values(one.executeQuery()), "rows in binary form");
            }
        }
    }

    /// A portal that is suspended again and again, beside another one.
    static void fetchesInParts() throws Exception {
        try (Connection connection = connect()) {
            connection.setAutoCommit(false);
            try (Statement asked = connection.createStatement(); Statement other = connection.createStatement()) {
                asked.setFetchSize(100);
                other.setFetchSize(7);
                ResultSet answer = asked.executeQuery("select value as v from generate_series(1, 2500)");
                ResultSet second = other.executeQuery("select value as v from generate_series(1, 50)");
                long rows = 0, sum = 0;
                while (answer.next()) {
                    rows++;
                    sum += answer.getLong("v");
                    if (rows % 50 == 0) same(second.next(), true, "the other portal");
                }
                same(rows + " " + sum, "2500 3126250", "rows and their sum");
                same(second.next(), false, "the other portal has more");
            }
            connection.commit();
            // What is not read to its end goes with its transaction.
            try (Statement asked = connection.createStatement()) {
                asked.setFetchSize(10);
                ResultSet answer = asked.executeQuery("select value as v from generate_series(1, 1000)");
                answer.next();
                connection.rollback();
                refused("34000", () -> { while (answer.next()) { } });
            }
            connection.rollback();
        }
        try (Connection connection = connect(); Statement asked = connection.createStatement()) {
            asked.setMaxRows(5);
            same(rows(asked.executeQuery("select value from generate_series(1, 1000)")).size(), 5, "rows of five at most");
            asked.setMaxRows(Integer.MAX_VALUE);
            same(rows(asked.executeQuery("select value from generate_series(1, 1000)")).size(), 1000, "rows of many at most");
        }
    }

    static void cancels() throws Exception {
        try (Connection connection = connect(); Statement asked = connection.createStatement()) {
            Thread stopper = new Thread(() -> {
                try {
                    Thread.sleep(1000);
                    asked.cancel();
                } catch (Exception error) {
                    throw new RuntimeException(error);
                }
            });
            stopper.start();
            refused("57014", () -> asked.executeQuery(ENDLESS));
            stopper.join();
            asked.setQueryTimeout(1);
            refused("57014", () -> asked.executeQuery(ENDLESS));
            asked.setQueryTimeout(0);
            same(one(connection, "select 1 as one"), 1L, "the next answer");
            connection.createStatement().execute("set statement_timeout = 300");
            refused("57014", () -> asked.executeQuery(ENDLESS));
            same(connection.isValid(5), true, "validity");
        }
    }

    static void isReadOnly() throws Exception {
        try (Connection connection = connect(); Statement asked = connection.createStatement()) {
            for (String statement : List.of("drop table requests", "insert into faults select * from faults", "create table t (a int)",
                "create temp table t as select 1", "delete from requests", "update requests set event = 'x'", "truncate requests"))
                refused("25006", () -> asked.execute(statement));
            refused("42P01", () -> asked.executeQuery("select * from request"));
            refused("42703", () -> asked.executeQuery("select prompt_token from requests"));
            refused("42601", () -> asked.executeQuery("selec 1"));
            connection.setReadOnly(true);
            same(connection.isReadOnly(), true, "read-only");
            connection.setAutoCommit(false);
            same(one(connection, "select 1 as one"), 1L, "an answer");
            connection.commit();
        }
    }

    static void transactionsEnd() throws Exception {
        try (Connection connection = connect()) {
            connection.setAutoCommit(false);
            connection.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
            same(one(connection, "select 1 as one"), 1L, "an answer");
            refused("42703", () -> one(connection, "select nothing from requests"));
            refused("25P02", () -> one(connection, "select 1 as one"));
            connection.rollback();
            same(one(connection, "select 2 as two"), 2L, "after the rollback");
            connection.commit();
            Savepoint savepoint = connection.setSavepoint();
            same(one(connection, "select 3 as three"), 3L, "after a savepoint");
            refused("42703", () -> one(connection, "select nothing from requests"));
            connection.rollback(savepoint);
            same(one(connection, "select 4 as four"), 4L, "after the rollback to a savepoint");
            connection.commit();
            connection.setAutoCommit(true);
            same(one(connection, "select 5 as five"), 5L, "after the transactions");
        }
        try (Connection connection = connect("autosave", "always")) {
            connection.setAutoCommit(false);
            same(one(connection, "select 1 as one"), 1L, "an answer");
            refused("42703", () -> one(connection, "select nothing from requests"));
            same(one(connection, "select 2 as two"), 2L, "with autosave");
        }
    }

    /// Several statements at once, batches, and the simple protocol.
    static void otherWays() throws Exception {
        try (Connection connection = connect("preferQueryMode", "simple")) {
            try (PreparedStatement asked = connection.prepareStatement("select ? + 1 as n, ?::timestamptz as t, ? as w")) {
                asked.setInt(1, 41);
                asked.setTimestamp(2, Timestamp.from(Instant.EPOCH));
                asked.setString(3, "it's");
                Map<String, String> row = rows(asked.executeQuery()).get(0);
                same(row.get("n") + " " + row.get("w"), "42 it's", "the simple protocol");
            }
            same(connection.isValid(5), true, "validity");
        }
        try (Connection connection = connect(); Statement asked = connection.createStatement()) {
            same(asked.execute("select 1 as one; select 2 as two"), true, "the first answer");
            same(asked.getMoreResults(), true, "the second answer");
            same(rows(asked.getResultSet()).get(0).get("two"), "2", "the second answer");
            ResultSetMetaData columns = asked.executeQuery("select at, event, prompt_tokens, gap_us from requests limit 1").getMetaData();
            same(columns.getColumnTypeName(1) + " " + columns.getColumnTypeName(2), "timestamptz text", "types");
            columns.getTableName(1);
            columns.isNullable(1);
            columns.isAutoIncrement(1);
        }
        try (Connection connection = connect(); PreparedStatement asked = connection.prepareStatement("select count(*) as n from requests where at > ? and event = ?")) {
            ParameterMetaData parameters = asked.getParameterMetaData();
            same(parameters.getParameterTypeName(1) + " " + parameters.getParameterTypeName(2), "timestamptz text", "types of parameters");
            same(asked.getMetaData().getColumnTypeName(1), "int8", "type of the answer");
        }
    }

    /// What DBeaver and Metabase send of their own accord.
    static void toolsAsk() throws Exception {
        try (Connection connection = connect("ApplicationName", "DBeaver 24.0 - Main"); Statement asked = connection.createStatement()) {
            for (String statement : List.of(
                "SET extra_float_digits = 3", "SHOW search_path", "SHOW server_version", "SELECT current_schema(),session_user",
                "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
                "SELECT db.oid,db.* FROM pg_catalog.pg_database db WHERE datname='evenkeel'",
                "SELECT n.oid,n.*,d.description FROM pg_catalog.pg_namespace n LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=n.oid AND d.objsubid=0 AND d.classoid='pg_namespace'::regclass ORDER BY nspname",
                "SELECT t.oid,t.*,c.relkind,format_type(nullif(t.typbasetype, 0), t.typtypmod) as base_type_name, d.description FROM pg_catalog.pg_type t LEFT OUTER JOIN pg_catalog.pg_type et ON et.oid=t.typelem LEFT OUTER JOIN pg_catalog.pg_class c ON c.oid=t.typrelid LEFT OUTER JOIN pg_catalog.pg_description d ON t.oid=d.objoid WHERE t.typname IS NOT NULL AND (c.relkind IS NULL OR c.relkind = 'c') AND (et.typcategory IS NULL OR et.typcategory <> 'C')",
                "SELECT c.oid,c.*,d.description,pg_catalog.pg_get_expr(c.relpartbound, c.oid) as partition_expr, pg_catalog.pg_get_partkeydef(c.oid) as partition_key FROM pg_catalog.pg_class c LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=c.oid AND d.objsubid=0 AND d.classoid='pg_class'::regclass WHERE c.relnamespace=2200 AND c.relkind not in ('i','I','c')",
                "SELECT c.relname,a.*,pg_catalog.pg_get_expr(ad.adbin, ad.adrelid, true) as def_value,dsc.description,dep.objid FROM pg_catalog.pg_attribute a INNER JOIN pg_catalog.pg_class c ON (a.attrelid=c.oid) LEFT OUTER JOIN pg_catalog.pg_attrdef ad ON (a.attrelid=ad.adrelid AND a.attnum = ad.adnum) LEFT OUTER JOIN pg_catalog.pg_description dsc ON (c.oid=dsc.objoid AND a.attnum = dsc.objsubid) LEFT OUTER JOIN pg_depend dep on dep.refobjid = a.attrelid AND dep.deptype = 'i' and dep.refobjsubid = a.attnum and dep.classid = dep.refclassid WHERE NOT a.attisdropped AND c.relkind not in ('i','I','c') AND c.oid=16384 ORDER BY a.attnum",
                "SELECT c.oid,c.*,t.relname as tabrelname,rt.relnamespace as refnamespace,d.description, case when c.contype='c' then \"substring\"(pg_get_constraintdef(c.oid), 7) else null end consrc_copy FROM pg_catalog.pg_constraint c INNER JOIN pg_catalog.pg_class t ON t.oid=c.conrelid LEFT OUTER JOIN pg_catalog.pg_class rt ON rt.oid=c.confrelid LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=c.oid AND d.objsubid=0 AND d.classoid='pg_constraint'::regclass WHERE c.conrelid=16384 ORDER BY c.oid",
                "SELECT i.*,i.indkey as keys,c.relname,c.relnamespace,c.relam,c.reltablespace,tc.relname as tabrelname,dsc.description,pg_catalog.pg_get_expr(i.indpred, i.indrelid) as pred_expr,pg_catalog.pg_get_expr(i.indexprs, i.indrelid, true) as expr,pg_catalog.pg_relation_size(i.indexrelid) as index_rel_size,pg_catalog.pg_stat_get_numscans(i.indexrelid) as index_num_scans FROM pg_catalog.pg_index i INNER JOIN pg_catalog.pg_class c ON c.oid=i.indexrelid INNER JOIN pg_catalog.pg_class tc ON tc.oid=i.indrelid LEFT OUTER JOIN pg_catalog.pg_description dsc ON i.indexrelid=dsc.objoid WHERE i.indrelid=16384 ORDER BY tabrelname, c.relname",
                "select c.oid,pg_catalog.pg_total_relation_size(c.oid) as total_rel_size,pg_catalog.pg_relation_size(c.oid) as rel_size FROM pg_class c WHERE c.relnamespace=2200",
                "SELECT * FROM pg_catalog.pg_enum WHERE 1<>1 LIMIT 1", "SELECT reltype FROM pg_catalog.pg_class WHERE 1<>1 LIMIT 1",
                "SELECT a.oid,a.* FROM pg_catalog.pg_roles a ORDER BY a.rolname", "SELECT e.oid,cfg.tbls,n.nspname as schema_name,e.* FROM pg_catalog.pg_extension e join pg_namespace n on n.oid =e.extnamespace left join (select ARRAY_AGG(ns.nspname || '.' ||  cls.relname) tbls, oid_ext from (select unnest(e1.extconfig) oid , e1.oid oid_ext from pg_catalog.pg_extension e1 ) c join pg_class cls on cls.oid = c.oid join pg_namespace ns on ns.oid = cls.relnamespace group by oid_ext) cfg on cfg.oid_ext = e.oid ORDER BY e.oid",
                "SELECT x.* FROM public.requests x ORDER BY at DESC LIMIT 200", "EXPLAIN select * from requests",
                // Metabase: its check, the clock, tables and columns, and a question of its builder.
                "SELECT current_setting('TIMEZONE')", "select pg_catalog.current_database()", "SELECT TRUE AS \"_\" FROM \"public\".\"requests\" WHERE 1 <> 1 LIMIT 0",
                "SELECT \"n\".\"nspname\" AS \"schema\", \"c\".\"relname\" AS \"name\", CASE \"c\".\"relkind\" WHEN 'r' THEN 'TABLE' WHEN 'p' THEN 'PARTITIONED TABLE' WHEN 'v' THEN 'VIEW' WHEN 'f' THEN 'FOREIGN TABLE' WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE NULL END AS \"type\", \"d\".\"description\" AS \"description\", NULLIF(\"stat\".\"n_live_tup\", 0) AS \"estimated_row_count\" FROM \"pg_catalog\".\"pg_class\" AS \"c\" INNER JOIN \"pg_catalog\".\"pg_namespace\" AS \"n\" ON \"c\".\"relnamespace\" = \"n\".\"oid\" LEFT JOIN \"pg_catalog\".\"pg_description\" AS \"d\" ON (\"c\".\"oid\" = \"d\".\"objoid\") AND (\"d\".\"objsubid\" = 0) AND (\"d\".\"classoid\" = 'pg_class'::regclass) LEFT JOIN \"pg_stat_user_tables\" AS \"stat\" ON (\"n\".\"nspname\" = \"stat\".\"schemaname\") AND (\"c\".\"relname\" = \"stat\".\"relname\") WHERE (\"c\".\"relnamespace\" = \"n\".\"oid\") AND (\"n\".\"nspname\" !~ '^information_schema|catalog_history|pg_') AND (\"c\".\"relkind\" IN ('r','p','v','f','m')) AND (\"n\".\"nspname\" IN ('public')) ORDER BY \"type\" ASC, \"schema\" ASC, \"name\" ASC",
                "SELECT \"c\".\"column_name\" AS \"name\", CASE WHEN \"c\".\"udt_schema\" IN ('public', 'pg_catalog') THEN FORMAT('%s', \"c\".\"udt_name\") ELSE FORMAT('\"%s\".\"%s\"', \"c\".\"udt_schema\", \"c\".\"udt_name\") END AS \"database-type\", \"c\".\"ordinal_position\" - 1 AS \"database-position\", \"c\".\"table_schema\" AS \"table-schema\", \"c\".\"table_name\" AS \"table-name\", \"pk\".\"column_name\" IS NOT NULL AS \"pk?\", COL_DESCRIPTION(CAST(CAST(FORMAT('%I.%I', CAST(\"c\".\"table_schema\" AS TEXT), CAST(\"c\".\"table_name\" AS TEXT)) AS REGCLASS) AS OID), \"c\".\"ordinal_position\") AS \"field-comment\", ((\"column_default\" IS NULL) OR (LOWER(\"column_default\") = 'null')) AND (\"is_nullable\" = 'NO') AND NOT (((\"column_default\" IS NOT NULL) AND (\"column_default\" LIKE '%nextval(%')) OR (\"is_identity\" <> 'NO')) AS \"database-required\", ((\"column_default\" IS NOT NULL) AND (\"column_default\" LIKE '%nextval(%')) OR (\"is_identity\" <> 'NO') AS \"database-is-auto-increment\" FROM \"information_schema\".\"columns\" AS \"c\" LEFT JOIN (SELECT \"tc\".\"table_schema\", \"tc\".\"table_name\", \"kc\".\"column_name\" FROM \"information_schema\".\"table_constraints\" AS \"tc\" INNER JOIN \"information_schema\".\"key_column_usage\" AS \"kc\" ON (\"tc\".\"constraint_name\" = \"kc\".\"constraint_name\") AND (\"tc\".\"table_schema\" = \"kc\".\"table_schema\") AND (\"tc\".\"table_name\" = \"kc\".\"table_name\") WHERE \"tc\".\"constraint_type\" = 'PRIMARY KEY') AS \"pk\" ON (\"c\".\"table_schema\" = \"pk\".\"table_schema\") AND (\"c\".\"table_name\" = \"pk\".\"table_name\") AND (\"c\".\"column_name\" = \"pk\".\"column_name\") WHERE c.table_schema !~ '^information_schema|catalog_history|pg_' AND (\"c\".\"table_schema\" IN ('public')) ORDER BY \"table-schema\" ASC, \"table-name\" ASC, \"database-position\" ASC",
                "SELECT DATE_TRUNC('minute', \"public\".\"requests\".\"at\") AS \"at\", COUNT(*) AS \"count\" FROM \"public\".\"requests\" WHERE (\"public\".\"requests\".\"at\" >= DATE_TRUNC('day', NOW())) AND (\"public\".\"requests\".\"at\" < DATE_TRUNC('day', (NOW() + INTERVAL '1 day'))) GROUP BY DATE_TRUNC('minute', \"public\".\"requests\".\"at\") ORDER BY DATE_TRUNC('minute', \"public\".\"requests\".\"at\") ASC")) {
                try {
                    if (asked.execute(statement)) rows(asked.getResultSet());
                } catch (SQLException error) {
                    throw new AssertionError(statement + ": " + error.getMessage());
                }
            }
        }
    }

    public static void main(String[] arguments) {
        TimeZone.setDefault(TimeZone.getTimeZone("Europe/Berlin"));
        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("logs in, and strangers do not", PostgresClient::logsIn);
        checks.put("tables and columns are described", PostgresClient::describesTables);
        checks.put("keys, indexes, types and functions are described", PostgresClient::describesTheRest);
        checks.put("parameters of each type", PostgresClient::bindsParameters);
        checks.put("parameters beside columns", PostgresClient::comparesColumns);
        checks.put("every column of every table comes, as text and in binary form", PostgresClient::everyColumnComes);
        checks.put("answers come in parts", PostgresClient::fetchesInParts);
        checks.put("statements are cancelled and time out", PostgresClient::cancels);
        checks.put("writes are refused", PostgresClient::isReadOnly);
        checks.put("transactions end", PostgresClient::transactionsEnd);
        checks.put("simple protocol, several statements, metadata of statements", PostgresClient::otherWays);
        checks.put("what DBeaver and Metabase ask", PostgresClient::toolsAsk);
        int passed = 0;
        for (Map.Entry<String, Check> check : checks.entrySet()) {
            try {
                check.getValue().run();
                passed++;
                System.out.println("ok " + check.getKey());
            } catch (Throwable failure) {
                System.out.println("FAILED " + check.getKey() + ": " + failure);
            }
        }
        System.out.println(passed + " passed, " + (checks.size() - passed) + " failed");
        System.exit(passed == checks.size() ? 0 : 1);
    }
}
