"""Arrow Flight SQL as the ADBC driver sees it (SPEC E2).

EVENKEEL_FLIGHT is HOST:PORT, EVENKEEL_KEY a key, EVENKEEL_TENANT its tenant, EVENKEEL_URL the HTTP side.
"""

import json
import os
import urllib.request

import adbc_driver_flightsql
import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import pyarrow as pa
from adbc_driver_flightsql import DatabaseOptions

from checks import raised, run, same

FLIGHT, URL = os.environ["EVENKEEL_FLIGHT"], os.environ["EVENKEEL_URL"]
TENANT, KEY = os.environ["EVENKEEL_TENANT"], os.environ["EVENKEEL_KEY"]
BEARER = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {KEY}"}


def connect(options: dict | None = None) -> flight_sql.Connection:
    return flight_sql.connect(f"grpc://{FLIGHT}", db_kwargs=BEARER if options is None else options, autocommit=True)


def over_http(query: str) -> pa.Table:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", "Accept": "application/vnd.apache.arrow.stream"}
    request = urllib.request.Request(URL + "/sql", json.dumps({"query": query}).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return pa.ipc.open_stream(response.read()).read_all()


def answers_are_those_of_http() -> None:
    query = "select * from requests where event = 'finished' order by at, request_id"
    with connect() as connection, connection.cursor() as cursor:
        cursor.execute(query)
        table = cursor.fetch_arrow_table()
    assert table.num_rows > 0, "no rows"
    wanted = over_http(query)
    same(table.schema.names, wanted.schema.names, "columns")
    same(table.equals(wanted), True, "the table equals the HTTP answer")
    same(table.schema.field("event").type, pa.string(), "type of text")


def parameters_are_bound() -> None:
    with connect() as connection, connection.cursor() as cursor:
        cursor.execute("select event, $2 + 1 as more from requests where event = $1 limit 1", parameters=["finished", 41])
        same(cursor.fetchone(), ("finished", 42), "the row")
        schema = cursor.adbc_prepare("select at from requests where prompt_tokens > $1 and event = $2")
        same([str(field.type) for field in schema], ["uint32", "string"], "types of the parameters")
        many = lambda: cursor.execute("select $1", parameters=pa.table({"a": [1, 2]}))
        raised(flight_sql.Error, many)


def the_catalogue_is_told() -> None:
    with connect() as connection:
        info = connection.adbc_get_info()
        same(info["vendor_name"], "Evenkeel", "the server's name")
        same("TABLE" in connection.adbc_get_table_types(), True, "kinds of tables")
        objects = connection.adbc_get_objects(depth="all", table_name_filter="faults").read_all().to_pylist()
        schemas = {schema["db_schema_name"]: schema for schema in objects[0]["catalog_db_schemas"]}
        table = schemas["public"]["db_schema_tables"][0]
        same(table["table_name"], "faults", "the table")
        same([column["column_name"] for column in table["table_columns"]], ["at", "component", "kind", "detail", "count"], "columns")
        schema = connection.adbc_get_table_schema("requests", db_schema_filter="public")
        same(schema.field("at").type, pa.timestamp("us", tz="UTC"), "type of a column")


def mistakes_are_told() -> None:
    with connect() as connection, connection.cursor() as cursor:
        error = raised(flight_sql.Error, lambda: cursor.execute("drop table requests"))
        assert "read-only" in str(error), error
        error = raised(flight_sql.Error, lambda: cursor.execute("select prompt_token from requests"))
        assert "prompt_tokens" in str(error), error
        error = raised(flight_sql.Error, lambda: (cursor.execute("select * from generate_series(1, 200000)"), cursor.fetch_arrow_table()))
        assert "rows" in str(error), error
        cursor.execute("select 1 as one")
        same(cursor.fetchone(), (1,), "the next answer")


def strangers_are_refused() -> None:
    for options in ({}, {DatabaseOptions.AUTHORIZATION_HEADER.value: "Bearer wrong"}):
        def ask(options: dict = options) -> None:
            with connect(options) as connection, connection.cursor() as cursor:
                cursor.execute("select 1")

        error = raised(flight_sql.Error, ask)
        assert "UNAUTHENTICATED" in str(error).upper() or "key" in str(error), error
        assert KEY not in str(error)


def names_and_passwords_do() -> None:
    with connect({"username": TENANT, "password": KEY}) as connection, connection.cursor() as cursor:
        cursor.execute("select current_user")
        same(cursor.fetchone(), (TENANT,), "who asks")


print(f"ADBC {adbc_driver_manager.__version__}, Flight SQL {adbc_driver_flightsql.__version__}")
run([
    ("answers are those of HTTP", answers_are_those_of_http),
    ("parameters are bound", parameters_are_bound),
    ("the catalogue is told", the_catalogue_is_told),
    ("mistakes are told", mistakes_are_told),
    ("strangers are refused", strangers_are_refused),
    ("names and passwords do", names_and_passwords_do),
])
