"""Runs named checks in order and stops at the first that fails.

Prints `ok NAME` per check and closes with `N passed, M failed`. A failed check prints what was wrong to stderr and ends
the process with exit code 1; the checks after it do not run.
"""

import sys
import traceback
from collections.abc import Callable, Iterable

Check = Callable[[], None]


def run(checks: Iterable[tuple[str, Check]]) -> None:
    passed = 0
    for name, check in checks:
        try:
            check()
        except AssertionError as failure:
            fail(passed, f"{name}: {failure or 'an assert without words failed, see the line above'}", failure)
        except Exception as failure:  # A fault of any kind is a failed check.
            fail(passed, f"{name}: {type(failure).__name__}: {failure}", failure)
        passed += 1
        print(f"ok {name}", flush=True)
    print(f"{passed} passed, 0 failed")


def fail(passed: int, words: str, failure: BaseException) -> None:
    traceback.print_exception(failure)
    print(f"FAILED {words}", file=sys.stderr)
    print(f"{passed} passed, 1 failed")
    sys.exit(1)


def same(got: object, wanted: object, what: str) -> None:
    """Asserts equality with both values in the message."""
    assert got == wanted, f"{what} is {got!r}, expected {wanted!r}"


def raised(kind: type[Exception], call: Callable[[], object]) -> Exception:
    """Calls and returns the exception of `kind` that it must raise."""
    try:
        result = call()
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} was raised instead of {kind.__name__}: {error}") from error
    raise AssertionError(f"{kind.__name__} was not raised; the call returned {result!r}")
