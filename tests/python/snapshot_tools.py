"""A snapshot folder opened by four tools that have never heard of Evenkeel: PyArrow, Polars, DuckDB and pandas (SPEC E3).

    python snapshot_tools.py FOLDER

FOLDER holds the `manifest.json` of a whole snapshot and, for every table it names, `TABLE.arrow` (Arrow IPC file, zstd) and
`TABLE.parquet`. Files must be those of the manifest, to the checksum; all tools must find the same tables, the same rows and
the same times, which are UTC microseconds.
"""

import hashlib
import json
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checks import run, same

UTC_MICROSECONDS = pa.timestamp("us", tz="UTC")


class Snapshot:
    """The folder and its manifest; the manifest is trusted for nothing but what to look at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.tables: list[dict] = self.manifest["tables"]

    def file(self, table: dict, kind: str) -> Path:
        return self.folder / f"{table['name']}.{kind}"

    def arrow(self, table: dict) -> pa.Table:
        with pa.memory_map(str(self.file(table, "arrow"))) as source:
            return pa.ipc.open_file(source).read_all()

    def parquet(self, table: dict) -> pa.Table:
        return pq.ParquetFile(self.file(table, "parquet")).read()

    def as_of(self) -> datetime:
        return datetime.fromtimestamp(self.manifest["as_of"] / 1e6, tz=timezone.utc)


def checks(snapshot: Snapshot):
    """The checks of the whole folder, then those of every table."""
    yield "manifest", lambda: check_manifest(snapshot)
    for table in snapshot.tables:
        name = table["name"]
        yield f"{name}: PyArrow", lambda table=table: check_pyarrow(snapshot, table)
        yield f"{name}: Polars", lambda table=table: check_polars(snapshot, table)
        yield f"{name}: DuckDB", lambda table=table: check_duckdb(snapshot, table)
        yield f"{name}: pandas", lambda table=table: check_pandas(snapshot, table)


def check_manifest(snapshot: Snapshot) -> None:
    manifest = snapshot.manifest
    assert isinstance(manifest["version"], int), f"version is {manifest['version']!r}, expected a whole number"
    same(type(manifest["as_of"]), int, "type of as_of, microseconds since the epoch in UTC")
    names = [table["name"] for table in snapshot.tables]
    assert names, "the manifest names no table"
    same(len(set(names)), len(names), f"number of different names in {names}")
    same((manifest["base"], manifest["chain"]), (None, 1), "the chain of a whole snapshot")
    parts = [part for table in snapshot.tables for part in table["parts"]]
    same(len(parts), len(names), "parts, one for each table")
    same({part["snapshot"] for part in parts}, {manifest["name"]}, "the snapshot that wrote the parts")
    files = {file["name"]: file for part in parts for file in part["files"]}
    listed = set(files)
    wanted = {f"{name}.{kind}" for name in names for kind in ("arrow", "parquet")}
    same(listed, wanted, "the set of files in the manifest")
    present = {path.name for path in snapshot.folder.iterdir()}
    same(present, wanted | {"manifest.json"}, "the set of files in the folder")
    for name, file in files.items():
        content = (snapshot.folder / name).read_bytes()
        same(len(content), file["bytes"], f"bytes of {name}")
        same(hashlib.sha256(content).hexdigest(), file["sha256"], f"SHA-256 of {name}")
    for table in snapshot.tables:
        rows = table["rows"]
        assert isinstance(rows, int) and rows >= 0, f"rows of {table['name']} is {rows!r}"


def check_pyarrow(snapshot: Snapshot, table: dict) -> None:
    arrow, parquet = snapshot.arrow(table), snapshot.parquet(table)
    same(arrow.num_rows, table["rows"], "rows of the Arrow file")
    same(parquet.num_rows, table["rows"], "rows of the Parquet file")
    # Equal up to the name of a list's inner field, which Parquet calls "element" by convention.
    assert parquet.schema.equals(arrow.schema), f"the Parquet file has {parquet.schema}, the Arrow file {arrow.schema}"
    for name in arrow.column_names:
        assert arrow[name].equals(parquet[name]), f"column {name} differs between the Arrow and the Parquet file"
    arrow.validate(full=True)
    for file, schema in (("Arrow", arrow.schema), ("Parquet", parquet.schema)):
        for field in schema:
            described = (field.metadata or {}).get(b"comment")
            assert described, f"column {field.name} has lost its comment in the {file} file"
    check_times(snapshot, arrow)
    for file, schema in (("Arrow", arrow.schema), ("Parquet", parquet.schema)):
        told = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
        wanted = {
            "table": table["name"],
            "version": str(snapshot.manifest["version"]),
            "snapshot": snapshot.manifest["name"],
            "as_of": str(snapshot.manifest["as_of"]),
            "producer": snapshot.manifest["producer"]["program"],
        }
        same({key: told.get(key) for key in wanted}, wanted, f"what the {file} file says of itself")

    metadata = pq.ParquetFile(snapshot.file(table, "parquet")).metadata
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            same(chunk.compression, "ZSTD", f"compression of {chunk.path_in_schema} in row group {group}")


def check_times(snapshot: Snapshot, arrow: pa.Table) -> None:
    times = [field for field in arrow.schema if pa.types.is_timestamp(field.type)]
    assert times, "the table has no time column"
    # A wrong unit is off by a factor of 1000: a wide window is enough to notice.
    earliest, latest = datetime(2020, 1, 1, tzinfo=timezone.utc), snapshot.as_of() + timedelta(minutes=1)
    for field in times:
        same(field.type, UTC_MICROSECONDS, f"type of {field.name}")
        bounds = pc.min_max(arrow[field.name]).as_py()
        if bounds["min"] is None:
            continue
        assert earliest <= bounds["min"], f"{field.name} begins at {bounds['min']}, before {earliest}"
        assert bounds["max"] <= latest, f"{field.name} ends at {bounds['max']}, after the snapshot's {latest}"


def check_polars(snapshot: Snapshot, table: dict) -> None:
    frames = {
        "Arrow": polars.read_ipc(snapshot.file(table, "arrow")),
        "Parquet": polars.read_parquet(snapshot.file(table, "parquet")),
    }
    wanted = micros_of(snapshot.arrow(table))
    for file, frame in frames.items():
        same(frame.height, table["rows"], f"rows of the {file} file")
        for name, bounds in wanted.items():
            same(frame.schema[name], polars.Datetime("us", "UTC"), f"type of {name} in the {file} file")
            micros = frame[name].dt.epoch("us")
            same((micros.min(), micros.max()), bounds, f"first and last {name} in the {file} file")


def check_duckdb(snapshot: Snapshot, table: dict) -> None:
    # DuckDB reads Parquet by itself and Arrow files through PyArrow: its own reader is an extension to download.
    arrow = snapshot.arrow(table)
    wanted = micros_of(arrow)
    with duckdb.connect() as connection:
        connection.register("arrow_file", arrow)
        parquet_file = f"read_parquet('{snapshot.file(table, 'parquet')}')"
        for file, source in (("Arrow", "arrow_file"), ("Parquet", parquet_file)):
            (rows,) = connection.execute(f"SELECT count(*) FROM {source}").fetchone()
            same(rows, table["rows"], f"rows of the {file} file")
            for name, bounds in wanted.items():
                column = f'"{name}"'
                *found, kind = connection.execute(
                    f"SELECT epoch_us(min({column})), epoch_us(max({column})), typeof(min({column})) FROM {source}"
                ).fetchone()
                same(tuple(found), bounds, f"first and last {name} in the {file} file")
                same(kind, "TIMESTAMP WITH TIME ZONE", f"type of {name} in the {file} file")


def check_pandas(snapshot: Snapshot, table: dict) -> None:
    frames = {
        "Arrow": pandas.read_feather(snapshot.file(table, "arrow")),
        "Parquet": pandas.read_parquet(snapshot.file(table, "parquet")),
    }
    wanted = micros_of(snapshot.arrow(table))
    for file, frame in frames.items():
        same(len(frame), table["rows"], f"rows of the {file} file")
        for name, bounds in wanted.items():
            same(str(frame[name].dtype), "datetime64[us, UTC]", f"type of {name} in the {file} file")
            known = frame[name].dropna()
            micros = known.astype("int64")
            found = (None, None) if known.empty else (int(micros.min()), int(micros.max()))
            same(found, bounds, f"first and last {name} in the {file} file")


def micros_of(arrow: pa.Table) -> dict[str, tuple[int | None, int | None]]:
    """First and last value of every time column, as microseconds since the epoch."""
    bounds = {}
    for field in arrow.schema:
        if pa.types.is_timestamp(field.type):
            both = pc.min_max(arrow[field.name].cast(pa.int64())).as_py()
            bounds[field.name] = (both["min"], both["max"])
    return bounds


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python snapshot_tools.py FOLDER (a snapshot, with manifest.json in it)")
    folder = Path(sys.argv[1])
    if not (folder / "manifest.json").is_file():
        sys.exit(f"FAILED {folder} has no manifest.json; name a snapshot folder")
    run(checks(Snapshot(folder)))
