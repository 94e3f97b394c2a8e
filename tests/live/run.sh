#!/usr/bin/env bash
# Tests against a running server: `evenkeel serve` with the default model on free ports and an empty data folder.
# Needs EVENKEEL_BIN; EVENKEEL_VENV is where the Python tools are installed. Closes with `N passed, N failed, N skipped`.
set -uo pipefail
cd "$(dirname "$0")/../.."
: "${EVENKEEL_BIN:?path of the evenkeel binary}"
venv="${EVENKEEL_VENV:-$PWD/.venv}"
work=$(mktemp -d)
passed=0 failed=0 skipped=0
server=
stores=()
finish() {
  [ "${#stores[@]}" = 0 ] || kill "${stores[@]}" 2>/dev/null
  [ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
  rm -rf "$work"
}
trap finish EXIT

check() { # check NAME COMMAND…
  local name=$1
  shift
  echo "--- $name"
  if "$@"; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    echo "FAILED $name"
  fi
}

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import openai, pandas, pyarrow, polars, duckdb, psycopg, sqlalchemy, adbc_driver_flightsql, moto.server' 2>/dev/null; then
  echo "installing Python tools (once) into $venv"
  python3 -m venv "$venv" && "$venv/bin/pip" install -q -r tests/python/requirements.txt || exit 1
fi

# serve NAME [option…]: starts a server on free ports with an empty data folder and waits until it is ready. Sets `server`,
# EVENKEEL_URL, EVENKEEL_FLIGHT and EVENKEEL_PG.
serve() {
  local name=$1
  shift
  export EVENKEEL_URL="http://127.0.0.1:$(port)"
  export EVENKEEL_FLIGHT="127.0.0.1:$(port)" EVENKEEL_PG="127.0.0.1:$(port)"
  "$EVENKEEL_BIN" serve --listen "${EVENKEEL_URL#http://}" --flight-listen "$EVENKEEL_FLIGHT" --pg-listen "$EVENKEEL_PG" --data-dir "$work/$name" "$@" \
    >"$work/$name.log" 2>&1 &
  server=$!
  for _ in $(seq 120); do
    curl -fsS -o /dev/null "$EVENKEEL_URL/ready" 2>/dev/null && break
    kill -0 "$server" 2>/dev/null || break
    sleep 1
  done
  if ! curl -fsS "$EVENKEEL_URL/ready"; then
    echo "the server did not get ready:"
    tail -n 40 "$work/$name.log"
    exit 1
  fi
  echo
}

port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
serve serve

check "official OpenAI client" "$venv/bin/python" tests/python/openai_client.py
check "structured output with the official client" "$venv/bin/python" tests/python/structured_output.py
check "SQL from the command line" "$EVENKEEL_BIN" sql "select event, count(*) as n from requests group by event order by n desc"
check "snapshot" "$EVENKEEL_BIN" snapshot --out "$work/snapshot"
check "snapshot in pyarrow, polars, DuckDB and pandas" "$venv/bin/python" tests/python/snapshot_tools.py "$work/snapshot"
check "offline analysis as documented" env EVENKEEL_BIN="$EVENKEEL_BIN" "$venv/bin/python" tests/python/offline_analysis.py "$work/snapshot"
check "saved query from the command line" "$EVENKEEL_BIN" sql --saved latency/ttft_by_tier --param minutes=60
check "SQL over the snapshot, without a server" env EVENKEEL_URL=http://127.0.0.1:1 "$EVENKEEL_BIN" sql --snapshot "$work/snapshot" --saved traffic/arrivals
if command -v promtool >/dev/null; then
  check "Prometheus takes the metrics" bash -c 'curl -fsS "$EVENKEEL_URL/metrics" | promtool check metrics'
else
  skipped=$((skipped + 1))
  echo "SKIPPED (no promtool: install Debian's package prometheus)"
fi
check "doctor" env EVENKEEL_SERVER__LISTEN="${EVENKEEL_URL#http://}" EVENKEEL_SERVER__FLIGHT_LISTEN="127.0.0.1:$(port)" \
  "$EVENKEEL_BIN" doctor
check "top on a terminal" env EVENKEEL_BIN="$EVENKEEL_BIN" "$venv/bin/python" tests/python/terminal.py
check "SQL script from a pipe" bash -c 'echo "select 1; select count(*) from requests;" | "$EVENKEEL_BIN" sql --format csv'
chromium=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || true)}
if [ -n "$chromium" ]; then
  check "page in headless Chromium" env CHROMIUM="$chromium" node dashboards/web/tests/page.mjs "${EVENKEEL_SCREENSHOTS:-$work/pages}"
else
  skipped=$((skipped + 1))
  echo "SKIPPED (no Chromium: install it, or set CHROMIUM)"
fi
check "stops on SIGTERM" bash -c "kill $server && timeout 30 tail --pid=$server -f /dev/null"
export EVENKEEL_TENANT=operator EVENKEEL_KEY=sesame-for-the-doors
printf '[[server.keys]]\nkey = "%s"\ntenant = "%s"\nclass = "High"\n' "$EVENKEEL_KEY" "$EVENKEEL_TENANT" >"$work/keys.toml"
: >"$work/doors.toml"
export EVENKEEL_PG_CERT=
if command -v openssl >/dev/null; then
  export EVENKEEL_PG_CERT="$work/cert.pem"
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout "$work/key.pem" -out "$EVENKEEL_PG_CERT" -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost,IP:127.0.0.1 2>/dev/null
  printf '[server]\npg_tls_cert = "%s"\npg_tls_key = "%s"\n' "$EVENKEEL_PG_CERT" "$work/key.pem" >>"$work/doors.toml"
else
  skipped=$((skipped + 1))
  echo "SKIPPED (no openssl: TLS of the PostgreSQL wire)"
fi
cat "$work/keys.toml" >>"$work/doors.toml"
serve doors --model simulated --workers 1 --config "$work/doors.toml"
if command -v psql >/dev/null; then
  check "psql, psycopg and SQLAlchemy" "$venv/bin/python" tests/python/postgres_client.py
else
  skipped=$((skipped + 1))
  echo "SKIPPED (no psql: install postgresql-client)"
fi
jdbc=${EVENKEEL_JDBC:-/usr/share/java/postgresql.jar}
if command -v java >/dev/null && [ -f "$jdbc" ]; then
  check "JDBC" java -cp "$jdbc" tests/java/PostgresClient.java
else
  skipped=$((skipped + 1))
  echo "SKIPPED (no java or no $jdbc: install default-jdk-headless and libpostgresql-jdbc-java, or set EVENKEEL_JDBC)"
fi
check "ADBC over Flight SQL" "$venv/bin/python" tests/python/flight_sql_client.py
check "doors stop on SIGTERM" bash -c "kill $server && timeout 30 tail --pid=$server -f /dev/null"
unset EVENKEEL_TENANT EVENKEEL_KEY EVENKEEL_PG_CERT

# store NAME URL COMMAND…: starts a store, and a server that writes snapshots to URL in it.
store() {
  local name=$1 url=$2
  shift 2
  "$@" >"$work/store-$name.log" 2>&1 &
  stores+=($!)
  for _ in $(seq 60); do
    "$venv/bin/python" tests/python/object_stores.py make "$url" 2>"$work/store-$name-make.log" && break
    sleep 1
  done
  printf '[snapshots]\ntarget = "%s"\nincremental = "on"\nretain_count = 2\n' "$url" >"$work/store-$name.toml"
  serve "in-$name" --model simulated --workers 1 --config "$work/store-$name.toml"
  check "snapshots in $name" env EVENKEEL_BIN="$EVENKEEL_BIN" "$venv/bin/python" tests/python/object_stores.py check "$url"
  check "stops on SIGTERM beside $name" bash -c "kill $server && timeout 30 tail --pid=$server -f /dev/null"
}

s3_port=$(port)
export AWS_ACCESS_KEY_ID=me AWS_SECRET_ACCESS_KEY=sesame AWS_REGION=us-east-1
export AWS_ENDPOINT_URL="http://127.0.0.1:$s3_port" AWS_ALLOW_HTTP=true
store S3 s3://fleet/live "$venv/bin/moto_server" -H 127.0.0.1 -p "$s3_port"
azurite="$venv/azurite/node_modules/.bin/azurite-blob"
if [ ! -x "$azurite" ] && command -v npm >/dev/null; then
  echo "installing Azurite (once) into $venv/azurite"
  npm install --silent --no-fund --no-audit --prefix "$venv/azurite" azurite@3.35.0
fi
if [ -x "$azurite" ]; then
  az_port=$(port)
  # The account that every Azurite has.
  export AZURE_STORAGE_ACCOUNT_NAME=devstoreaccount1 AZURE_ALLOW_HTTP=true
  export AZURE_STORAGE_ACCOUNT_KEY=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==
  export AZURE_STORAGE_ENDPOINT="http://127.0.0.1:$az_port/$AZURE_STORAGE_ACCOUNT_NAME"
  store Azure az://fleet/live "$azurite" --blobHost 127.0.0.1 --blobPort "$az_port" --inMemoryPersistence --skipApiVersionCheck \
    --disableTelemetry
elif [ -n "${CI:-}" ]; then
  failed=$((failed + 1))
  echo "FAILED snapshots in Azure: Azurite could not be installed"
else
  skipped=$((skipped + 1))
  echo "SKIPPED (no Azurite: npm and the network are needed once)"
fi
if [ -n "$chromium" ]; then
  # Little memory for KV, so that a few dozen prompts drive each other out of the caches.
  printf '[workers]\nkv_bytes_max = "24MiB"\n[dataflow]\nfunnel_window = "2s"\nmrc_interval = "2s"\n[[shadow.policies]]\nname = "even"\npolicy = { route = { policy = "round_robin" } }\n' >"$work/storm.toml"
  serve storm --config "$work/storm.toml"
  check "page says why the hit rate fell" env CHROMIUM="$chromium" node dashboards/web/tests/story.mjs "${EVENKEEL_SCREENSHOTS:-$work/pages}"
fi
if [ "$failed" != 0 ]; then
  for log in "$work"/*.log; do
    echo "--- ${log##*/}"
    tail -n 40 "$log"
  done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
