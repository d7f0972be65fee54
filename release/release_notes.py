"""What a version's notes say: its section of the changelog. `python release/release_notes.py v0.2.0` prints them.

The forge takes them from here, not from the tag: what checks a tag out there leaves the tag's own text behind.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def section(changelog: str, name: str) -> str:
    """What the changelog says under a version, or under Unreleased; empty where it has no such heading."""
    after = re.split(rf"^## \[{re.escape(name)}\].*$", changelog, maxsplit=1, flags=re.MULTILINE)[1:]
    return re.split(r"^## ", after[0], maxsplit=1, flags=re.MULTILINE)[0].strip() if after else ""


def release_notes(changelog: str, version: str) -> str:
    said = section(changelog, version)
    if not said:
        raise SystemExit(f"error: the changelog says nothing about {version}")
    return f"# hangscope {version}\n\n{said}\n"


if __name__ == "__main__":
    print(release_notes(CHANGELOG.read_text(encoding="utf-8"), sys.argv[1].removeprefix("v")), end="")
