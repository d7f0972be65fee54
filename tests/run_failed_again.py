"""Run the tests that failed in the last run once more, one after the other, with nothing beside them.

    python tests/run_failed_again.py

`make test` calls it after a run that failed. pytest's own --last-failed does not do for it: xdist writes the group of a
test behind its name (`…::test_x@ray`), by which it is found in no file. Such a test would be left out, and its failure
with it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
MOST = 15
"""Of more, it is no accident."""


def names(known: list[str]) -> list[str]:
    """The tests by the names that pytest finds them by, each once."""
    return sorted({_without_group(name) for name in known})


def _without_group(name: str) -> str:
    """A parameter may hold an @; the group comes behind it."""
    end = name.rfind("]") + 1
    return name[:end] + name[end:].partition("@")[0]


def main() -> int:
    try:
        failed = names(list(json.loads(LAST_FAILED.read_text(encoding="utf-8"))))
    except (OSError, ValueError):
        failed = []
    if not failed or len(failed) > MOST:
        print(f"{len(failed)} tests failed: none is run again")
        return 1
    LAST_FAILED.unlink()
    print("once more, with nothing beside them: the tests that failed", flush=True)
    return pytest.main(failed)


if __name__ == "__main__":
    sys.exit(main())
