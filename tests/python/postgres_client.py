"""The PostgreSQL wire as PostgreSQL's own tools see it: psql, psycopg and SQLAlchemy (SPEC E2).

EVENKEEL_PG is HOST:PORT, EVENKEEL_TENANT and EVENKEEL_KEY the user and its password, EVENKEEL_URL the HTTP side, EVENKEEL_PG_CERT
the certificate for localhost of a server with TLS. The server has the simulated model.
"""

import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from datetime import datetime, timezone
from decimal import Decimal

import psycopg
import sqlalchemy
from psycopg.rows import dict_row

from checks import raised, run, same

HOST, PORT = os.environ["EVENKEEL_PG"].rsplit(":", 1)
TENANT, KEY = os.environ["EVENKEEL_TENANT"], os.environ["EVENKEEL_KEY"]
URL = os.environ["EVENKEEL_URL"]
CERTIFICATE = os.environ.get("EVENKEEL_PG_CERT")
REQUESTS = 3
# Runs until it is stopped.
ENDLESS = "select sum(value) from generate_series(1, 1000000000000)"


def http(path: str, body: dict, accept: str = "application/json") -> bytes:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", "Accept": accept}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read()


def psql(*arguments: str, key: str = KEY, user: str = TENANT) -> subprocess.CompletedProcess:
    command = ["psql", "-X", "-v", "VERBOSITY=verbose", "-h", HOST, "-p", PORT, "-U", user, "evenkeel", *arguments]
    environment = {**os.environ, "PGPASSWORD": key, "PGCONNECT_TIMEOUT": "10"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def ask(statement: str, *arguments: str) -> str:
    """What psql prints for a statement, unaligned and without headings."""
    answer = psql("-At", *arguments, "-c", statement)
    same(answer.returncode, 0, f"psql's exit code ({answer.stderr})")
    return answer.stdout.strip()


def connect(conninfo: str = "", **options) -> psycopg.Connection:
    place = {} if "host=" in conninfo else {"host": HOST}
    return psycopg.connect(conninfo, port=PORT, user=TENANT, password=KEY, dbname="evenkeel", **place, **options)


def rows_arrive() -> None:
    for number in range(REQUESTS):
        http("/v1/completions", {"model": "simulated", "prompt": f"prompt {number}", "max_tokens": 4})
    for _ in range(100):
        # The process behind SQL may still be starting, and says so.
        answer = psql("-At", "-c", "select count(*) from requests where event = 'finished'")
        if answer.returncode == 0 and int(answer.stdout) >= REQUESTS:
            return
        time.sleep(0.1)
    raise AssertionError(f"the requests did not become rows: {answer.stdout}{answer.stderr}")


def psql_describes() -> None:
    tables = ask(r"\dt").splitlines()
    assert "public|requests|table|evenkeel" in tables, tables
    described = psql("-c", r"\d requests")
    same(described.returncode, 0, f"exit code of \\d ({described.stderr})")
    lines = [[cell.strip() for cell in line.split("|")] for line in described.stdout.splitlines()]
    assert ["at", "timestamp with time zone", "", "not null", ""] in lines, described.stdout
    assert not described.stderr, described.stderr
    more = psql("-c", r"\d+ requests").stdout
    assert "prompt length [tokens]" in more, more
    for words in (r"\l", r"\dn", r"\du", r"\di", r"\dv", r"\df", r"\conninfo", r"\dt requests"):
        answer = psql("-c", words)
        assert answer.returncode == 0 and "ERROR" not in answer.stderr, f"{words}: {answer.stderr}"


def every_column_comes() -> None:
    """Every column of every table is sent, and a sample has the values of the HTTP answer."""
    for table in ask("select tablename from pg_tables order by 1").splitlines():
        ask(f"select * from {table} limit 5")
    statement = "select at, event, prompt_tokens, gap_us from requests order by at, seq limit 20"
    wanted = json.loads(http("/sql", {"query": statement}))
    with connect(row_factory=dict_row) as connection:
        got = connection.execute(statement).fetchall()
    same(len(got), len(wanted), "rows")
    for mine, theirs in zip(got, wanted):
        same(mine["at"], datetime.fromisoformat(theirs["at"].replace("Z", "+00:00")), "at")
        same({key: mine[key] for key in ("event", "prompt_tokens", "gap_us")},
             {key: theirs[key] for key in ("event", "prompt_tokens", "gap_us")}, "a row")


def copies_come_out() -> None:
    text = ask(r"\copy (select event, count(*) as n from requests group by event order by event) to stdout with (format csv, header)")
    lines = text.splitlines()
    same(lines[0], "event,n", "the heading")
    assert f"finished,{REQUESTS}" in lines, lines
    with connect() as connection, connection.cursor().copy("copy (select 1, 'a b', null) to stdout") as copy:
        same(bytes(b"".join(copy)), b"1\ta b\t\\N\n", "text")


def strangers_are_refused() -> None:
    for answer in (psql("-c", "select 1", key="wrong"), psql("-c", "select 1", user="nobody")):
        assert answer.returncode != 0 and "Password authentication failed" in answer.stderr, answer.stderr
    assert KEY not in psql("-c", "select 1", user="nobody").stderr


def writes_are_refused() -> None:
    for statement in ("drop table requests", "insert into faults select * from faults", "create table t (a int)"):
        answer = psql("-c", statement)
        assert answer.returncode != 0 and "25006" in answer.stderr, answer.stderr
    with connect(autocommit=True) as connection:
        raised(psycopg.errors.ReadOnlySqlTransaction, lambda: connection.execute("delete from requests where event = %s", ["x"]))


def mistakes_have_hints() -> None:
    answer = psql("-c", "select prompt_token from requests")
    for words in ("42703", 'column "prompt_token" does not exist', 'HINT:  Did you mean "prompt_tokens"?', "LINE 1", "^"):
        assert words in answer.stderr, answer.stderr
    assert "42P01" in psql("-c", "select * from request").stderr
    assert "42601" in psql("-c", "selec 1").stderr


def interrupts_stop_queries() -> None:
    """Ctrl-C in psql ends the statement with 57014; a session whose statement was cancelled goes on."""
    command = ["psql", "-X", "-At", "-v", "VERBOSITY=verbose", "-h", HOST, "-p", PORT, "-U", TENANT, "evenkeel"]
    environment = {**os.environ, "PGPASSWORD": KEY}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    process.stdin.write("select 'before';\n" + ENDLESS + ";\n")
    process.stdin.flush()
    same(process.stdout.readline().strip(), "before", "the first answer")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert "57014" in said, said
    with connect(autocommit=True) as connection:
        timer = threading.Timer(1, connection.cancel)
        timer.start()
        raised(psycopg.errors.QueryCanceled, lambda: connection.execute(ENDLESS))
        timer.join()
        same(connection.execute("select 1").fetchone(), (1,), "the next answer")


def statements_time_out() -> None:
    with connect(autocommit=True) as connection:
        connection.execute("set statement_timeout = '300ms'")
        same(connection.execute("show statement_timeout").fetchone(), ("300ms",), "the setting")
        raised(psycopg.errors.QueryCanceled, lambda: connection.execute(ENDLESS))
        same(connection.execute("select 1").fetchone(), (1,), "the next answer")


def parameters_are_bound() -> None:
    """Server-side parameters, in text and binary, with results in both."""
    for binary in (False, True):
        with connect() as connection, connection.cursor(binary=binary) as cursor:
            cursor.execute("select count(*) from requests where event = %s and at < %s and prompt_tokens > %s",
                           ["finished", datetime.now(timezone.utc), 0])
            same(cursor.fetchone()[0] >= REQUESTS, True, f"requests, binary={binary}")
            cursor.execute("select %s::bigint + 1, %s::text, %s::double precision, %s::boolean, %s::numeric",
                           [41, "it's", 1.5, True, Decimal("12.50")], prepare=True)
            row = cursor.fetchone()
            same(row[:4], (42, "it's", 1.5, True), f"values, binary={binary}")
            same(row[4], Decimal("12.5"), f"numeric, binary={binary}")
            cursor.execute("select event from requests where event = any(%s::text[]) limit 1", [["finished", "x"]])
            same(cursor.fetchone(), ("finished",), "a list")
            cursor.execute("select null::bigint, at from requests limit 1")
            same(cursor.fetchone()[0], None, "null")


def answers_come_in_parts() -> None:
    """A portal with a bound on rows: fetched part by part."""
    with connect() as connection:
        cursor = connection.cursor()
        rows = list(cursor.stream("select value from generate_series(1, 2500)"))
        same((len(rows), rows[-1]), (2500, (2500,)), "streamed rows")


def cursors_fetch() -> None:
    """psql's FETCH_COUNT and psycopg's cursors on the server: parts, steps back, WITH HOLD, one that is too many."""
    numbers = "select value from generate_series(1, 250)"
    answer = psql("-At", "-v", "FETCH_COUNT=100", "-c", numbers)
    same((answer.returncode, answer.stdout.split()[-1], answer.stdout.count("\n")), (0, "250", 250), f"rows of psql {answer.stderr}")
    for binary in (False, True):
        with connect() as connection:
            with connection.cursor("parts", binary=binary) as cursor:
                cursor.itersize = 7
                cursor.execute("select value, %s::text as word from generate_series(1, 60) where value <= %s", ["a", 50])
                same([column.name for column in cursor.description], ["value", "word"], "columns")
                same(len(cursor.fetchmany(10)), 10, "a part")
                same([row[0] for row in cursor], list(range(11, 51)), "the rest")
                cursor.scroll(0, mode="absolute")
                cursor.scroll(41)
                same(cursor.fetchone(), (42, "a"), f"a row after a scroll, binary={binary}")
            raised(psycopg.errors.InvalidCursorName, lambda: connection.execute("fetch parts"))
    with connect() as connection:
        held = connection.cursor("held", withhold=True)
        held.execute(numbers)
        connection.commit()
        same(held.fetchone(), (1,), "a row after the transaction")
        held.close()
    with connect(autocommit=True) as connection:
        raised(psycopg.errors.NoActiveSqlTransaction, lambda: connection.execute("declare c cursor for select 1"))
        for number in range(16):
            connection.execute(f"declare c{number} cursor with hold for select 1")
        raised(psycopg.errors.ConfigurationLimitExceeded, lambda: connection.execute("declare c cursor with hold for select 1"))
        connection.execute("close all")


def tls_is_verified() -> None:
    """TLS as psql asks for it, and a query within it that is stopped when its client goes."""
    if not CERTIFICATE:
        return print("SKIPPED (no openssl)")
    for options in (f"sslmode=verify-full sslrootcert={CERTIFICATE} host=localhost hostaddr={HOST}", "sslmode=require", "sslmode=disable"):
        is_within = "disable" not in options
        with connect(conninfo=options) as connection:
            same(connection.pgconn.ssl_in_use, is_within, options)
            same(connection.execute("select 1").fetchone(), (1,), options)
        settings = f"{options} port={PORT} user={TENANT} dbname=evenkeel" + ("" if "host" in options else f" host={HOST}")
        answer = subprocess.run(["psql", "-X", "-At", "-c", "select 2", settings], env={**os.environ, "PGPASSWORD": KEY},
                                capture_output=True, text=True, timeout=60)
        same((answer.returncode, answer.stdout.strip()), (0, "2"), f"psql with {options} ({answer.stderr})")
    strange = f"sslmode=verify-full sslrootcert={CERTIFICATE} host=elsewhere.example hostaddr={HOST}"
    assert "does not match" in str(raised(psycopg.OperationalError, lambda: connect(conninfo=strange)))
    with connect(conninfo="sslmode=require", autocommit=True) as connection:
        timer = threading.Timer(1, connection.cancel)
        timer.start()
        raised(psycopg.errors.QueryCanceled, lambda: connection.execute(ENDLESS))
        timer.join()


def transactions_end() -> None:
    with connect() as connection:
        connection.execute("select 1")
        same(connection.info.transaction_status.name, "INTRANS", "status")
        raised(psycopg.Error, lambda: connection.execute("select nothing"))
        raised(psycopg.errors.InFailedSqlTransaction, lambda: connection.execute("select 1"))
        connection.rollback()
        same(connection.execute("select 1").fetchone(), (1,), "after the rollback")
    with connect(autocommit=True) as connection:
        connection.execute("set evenkeel.note = 'kept'")
        same(connection.execute("show evenkeel.note").fetchone(), ("kept",), "the setting")


def sqlalchemy_inspects() -> None:
    url = sqlalchemy.URL.create("postgresql+psycopg", TENANT, KEY, HOST, int(PORT), "evenkeel")
    engine = sqlalchemy.create_engine(url)
    inspector = sqlalchemy.inspect(engine)
    assert "requests" in inspector.get_table_names(), inspector.get_table_names()
    with engine.connect() as connection:
        query = sqlalchemy.text("select count(*) from requests where event = :event")
        same(connection.execute(query, {"event": "finished"}).scalar() >= REQUESTS, True, "requests")


run([
    ("rows arrive", rows_arrive),
    ("psql describes tables", psql_describes),
    ("every column of every table comes", every_column_comes),
    ("COPY TO STDOUT", copies_come_out),
    ("strangers are refused", strangers_are_refused),
    ("writes are refused", writes_are_refused),
    ("mistakes have hints", mistakes_have_hints),
    ("Ctrl-C stops a query", interrupts_stop_queries),
    ("statement_timeout", statements_time_out),
    ("parameters are bound", parameters_are_bound),
    ("answers come in parts", answers_come_in_parts),
    ("cursors fetch", cursors_fetch),
    ("TLS is verified", tls_is_verified),
    ("transactions end", transactions_end),
    ("SQLAlchemy inspects", sqlalchemy_inspects),
])
