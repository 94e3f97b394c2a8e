"""`evenkeel top` on a terminal of its own: it draws the fleet, and gives the terminal back when it ends (SPEC E4).

    EVENKEEL_URL=http://127.0.0.1:8080 EVENKEEL_BIN=target/debug/evenkeel python terminal.py
"""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

from checks import run, same

BIN, URL = os.environ.get("EVENKEEL_BIN"), os.environ.get("EVENKEEL_URL")
if not (BIN and URL):
    sys.exit("FAILED EVENKEEL_BIN and EVENKEEL_URL are not set; they name the program and the server")

PATIENCE_SECONDS = 20
ALTERNATE_SCREEN, MAIN_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


def top_until(end):
    """Starts top, waits until it has drawn an instance, ends it by `end(pid, terminal)`. Gives all it drew and its exit status."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(BIN, [BIN, "top", "--url", URL])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    drawn, has_ended, deadline = b"", False, time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                drawn += os.read(terminal, 65536)
            except OSError:  # the other side is closed
                break
        if not has_ended and b"ready" in drawn:
            same(bool(termios.tcgetattr(terminal)[3] & termios.ECHO), False, "echo while it draws")
            end(pid, terminal)
            has_ended = True
    else:  # out of patience
        os.kill(pid, signal.SIGKILL)
    return drawn, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def gives_the_terminal_back(end):
    drawn, status = top_until(end)
    same(status, 0, "exit status")
    same(drawn.rfind(MAIN_SCREEN) > drawn.find(ALTERNATE_SCREEN) >= 0, True, "alternate screen entered, and left last")


def ends_at_a_key():
    gives_the_terminal_back(lambda _, terminal: os.write(terminal, b"q"))


def ends_on_a_signal():
    gives_the_terminal_back(lambda pid, _: os.kill(pid, signal.SIGTERM))


if __name__ == "__main__":
    run([("top ends at q", ends_at_a_key), ("top ends on SIGTERM", ends_on_a_signal)])
