"""Snapshots in an object store: written by a server, asked without one, opened by PyArrow, Polars and DuckDB (SPEC E3).

    python object_stores.py make URL      # the bucket or container of URL, empty
    python object_stores.py check URL     # a server with snapshots.target = URL, incremental = "on", retain_count = 2

URL is s3://BUCKET/PATH or az://CONTAINER/PATH. Where the store is and who asks is read from the variables that docs/snapshots.md
names. EVENKEEL_URL is the server, EVENKEEL_BIN the command line.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet as pq

from checks import run, same

SERVER, BIN = os.environ.get("EVENKEEL_URL", ""), os.environ.get("EVENKEEL_BIN", "evenkeel")


class Store:
    """A place in a store, as PyArrow and Polars reach it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.scheme, self.path = url.split("://")
        self.bucket = self.path.split("/")[0]
        if self.scheme == "s3":
            key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
            endpoint, region = os.environ["AWS_ENDPOINT_URL"], os.environ["AWS_REGION"]
            self.files = pyarrow.fs.S3FileSystem(
                access_key=key,
                secret_key=secret,
                region=region,
                scheme="http",
                endpoint_override=endpoint.removeprefix("http://"),
                allow_bucket_creation=True,
            )
            names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP")
        else:
            account, endpoint = os.environ["AZURE_STORAGE_ACCOUNT_NAME"], os.environ["AZURE_STORAGE_ENDPOINT"]
            authority = endpoint.removeprefix("http://").split("/")[0]
            self.files = pyarrow.fs.AzureFileSystem(
                account_name=account,
                account_key=os.environ["AZURE_STORAGE_ACCOUNT_KEY"],
                blob_storage_authority=authority,
                blob_storage_scheme="http",
                dfs_storage_authority=authority,
                dfs_storage_scheme="http",
            )
            names = (
                "AZURE_STORAGE_ACCOUNT_NAME",
                "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_ENDPOINT",
                "AZURE_ALLOW_HTTP",
            )
        self.options = {name.lower(): os.environ[name] for name in names}

    def moments(self) -> list[str]:
        """Folders of snapshots, oldest first."""
        return sorted(info.base_name for info in self.files.get_file_info(pyarrow.fs.FileSelector(self.path)))

    def manifest(self, name: str) -> dict:
        with self.files.open_input_stream(f"{self.path}/{name}/manifest.json") as file:
            return json.load(file)

    def parts(self, table: dict, kind: str) -> list[str]:
        """Paths of a table's files, from its bucket on."""
        return [f"{self.path}/{part['snapshot']}/{table['name']}.{kind}" for part in table["parts"]]


def post(path: str, body: dict) -> tuple[int, dict]:
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def written(body: dict) -> dict:
    status, answer = post("/snapshots", body)
    same(status, 200, f"the answer to POST /snapshots {body} ({answer})")
    return answer


def ask() -> None:
    """A request, so that there are rows."""
    with urllib.request.urlopen(SERVER + "/v1/models", timeout=60) as response:
        model = json.load(response)["data"][0]["id"]
    status, answer = post("/v1/completions", {"model": model, "prompt": "one two three", "max_tokens": 4})
    same(status, 200, f"the answer to a completion ({answer})")


def evenkeel(*arguments: str, **changed: str) -> subprocess.CompletedProcess:
    """The command line without a server."""
    environment = os.environ | {"EVENKEEL_URL": "http://127.0.0.1:1"} | changed
    return subprocess.run([BIN, *arguments], env=environment, capture_output=True, text=True, timeout=120)


def a_chain_is_written(store: Store) -> None:
    ask()
    whole = written({"incremental": False})
    ask()
    next_one = written({"incremental": True})
    same(next_one["manifest"]["base"], whole["name"], "the base")
    same(next_one["location"], f"{store.url}/{next_one['name']}", "the location")
    assert next_one["written"]["files"] < whole["written"]["files"], "the second one is as large as the first"
    same(store.moments(), [whole["name"], next_one["name"]], "what lies in the store")
    same(store.manifest(next_one["name"]), next_one["manifest"], "the manifest in the store")


def files_are_what_the_manifest_says(store: Store) -> None:
    for table in store.manifest(store.moments()[-1])["tables"]:
        arrow = 0
        for path in store.parts(table, "arrow"):
            with store.files.open_input_file(path) as file:
                arrow += pa.ipc.open_file(file).read_all().num_rows
        parquet = sum(pq.read_table(path, filesystem=store.files).num_rows for path in store.parts(table, "parquet"))
        same((arrow, parquet), (table["rows"], table["rows"]), f"rows of {table['name']} in Arrow and Parquet files")


def tools_read_from_the_store(store: Store) -> None:
    [table] = [table for table in store.manifest(store.moments()[-1])["tables"] if table["name"] == "requests"]
    paths = store.parts(table, "parquet")
    assert len(paths) == 2 and table["rows"] > 0, f"{table['rows']} rows in {paths}"
    urls = [f"{store.scheme}://{path}" for path in paths]
    same(polars.read_parquet(urls, storage_options=store.options).height, table["rows"], "rows that Polars reads")
    requests = pyarrow.dataset.dataset(paths, filesystem=store.files)
    same(duckdb.sql("select count(*) from requests").fetchall(), [(table["rows"],)], "rows that DuckDB reads")
    command = evenkeel("sql", "--snapshot", store.url, "--format", "csv", "select count(*) as n from requests")
    same(command.stdout.split(), ["n", str(table["rows"])], f"rows of evenkeel sql --snapshot ({command.stderr})")


def old_ones_go(store: Store) -> None:
    chain = store.moments()
    first = written({"incremental": False, "tables": ["requests"]})["name"]
    same(store.moments(), [*chain, first], "what lies there while the chain's last is one of the two that stay")
    second = written({"incremental": False, "tables": ["requests"]})["name"]
    same(store.moments(), [first, second], "what lies there when the chain has had its time")
    listed = evenkeel("snapshot", "list", "--in", store.url).stdout
    assert first in listed and second in listed and chain[0] not in listed, listed


def refusals_say_what_to_do(store: Store) -> None:
    nothing = evenkeel("snapshot", "list", "--in", f"{store.scheme}://no-such-bucket/a")
    assert nothing.returncode != 0 and "create it, or correct the target" in nothing.stderr, nothing.stderr
    silent = "http://127.0.0.1:1"
    lost = evenkeel(
        "snapshot",
        "list",
        "--in",
        store.url,
        AWS_ENDPOINT_URL=silent,
        AZURE_STORAGE_ENDPOINT=silent,
        EVENKEEL_SNAPSHOTS__STORE_TIMEOUT="1s",
    )
    assert lost.returncode != 0 and f"cannot reach {silent}" in lost.stderr, lost.stderr
    if store.scheme == "az":
        # moto takes any key.
        wrong = evenkeel("snapshot", "list", "--in", store.url, AZURE_STORAGE_ACCOUNT_KEY="c2VzYW1l")
        assert wrong.returncode != 0 and "check AZURE_STORAGE_ACCOUNT_NAME" in wrong.stderr, wrong.stderr


def checks(store: Store):
    yield "whole and incremental", lambda: a_chain_is_written(store)
    yield "PyArrow: files are what the manifest says", lambda: files_are_what_the_manifest_says(store)
    yield "Polars, DuckDB and evenkeel sql --snapshot", lambda: tools_read_from_the_store(store)
    yield "retention", lambda: old_ones_go(store)
    yield "refusals say what to do", lambda: refusals_say_what_to_do(store)


if __name__ == "__main__":
    action, place = sys.argv[1], Store(sys.argv[2])
    if action == "make":
        place.files.create_dir(place.bucket)
    else:
        run(checks(place))
