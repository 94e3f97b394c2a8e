"""The commands of docs/offline-analysis.md, run on a snapshot (SPEC E3).

    EVENKEEL_BIN=… python offline_analysis.py FOLDER [--show]

FOLDER is a whole snapshot of a server that has answered something. Every block of Python and every command of the document is run
with FOLDER in the place of the document's; each must succeed and print something. `--show` prints what came out.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from checks import run

DOCUMENT = Path(__file__).parents[2] / "docs" / "offline-analysis.md"
FOLDER = "/tmp/evenkeel-snapshot"


def blocks() -> list[tuple[str, str]]:
    """Kind and text of the document's blocks that can be run."""
    found = re.findall(r"^```(sh|python)\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) >= 5, f"{DOCUMENT} has {len(found)} blocks to run"
    # Commands that need a server are not about the snapshot.
    return [(kind, text) for kind, text in found if FOLDER in text and "--out" not in text]


def output(kind: str, text: str, folder: str) -> str:
    text = text.replace(FOLDER, folder)
    if kind == "python":
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, str(DOCUMENT), "exec"), {"__name__": "__main__"})
        return printed.getvalue()
    command = text.replace("target/debug/evenkeel", os.environ["EVENKEEL_BIN"])
    # Without a server to fall back on.
    environment = os.environ | {"EVENKEEL_URL": "http://127.0.0.1:1"}
    done = subprocess.run(["bash", "-ec", command], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(kind: str, text: str, folder: str, show: bool) -> None:
    printed = output(kind, text, folder)
    assert printed.strip(), f"nothing was printed by:\n{text}"
    if show:
        print(f"--- {text}\n{printed}")


if __name__ == "__main__":
    if len(sys.argv) < 2 or not (Path(sys.argv[1]) / "manifest.json").is_file():
        sys.exit("usage: python offline_analysis.py FOLDER [--show] (a snapshot, with manifest.json in it)")
    chosen = [(f"block {at + 1} ({kind})", kind, text) for at, (kind, text) in enumerate(blocks())]
    run(
        (name, lambda kind=kind, text=text: check(kind, text, sys.argv[1], "--show" in sys.argv))
        for name, kind, text in chosen
    )
