"""A release in one command: `make release VERSION=0.2.0`, or `python release/make_release.py 0.2.0`.

Checks that the tree is clean, the version is new and the changelog has something to say; moves what is unreleased under
the version, with today's date; sets the version; commits; builds docs, wheels (twice, the same bytes), notes and a bill
of materials (CycloneDX) into dist/; and tags. Where a step fails, the commit is taken back and nothing is tagged.
Nothing is pushed: pushing the tag starts the workflow that publishes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from datetime import datetime, timezone
from pathlib import Path

from bill_of_materials import bill_of_materials, published_files
from release_notes import release_notes, section
from say import run, say

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)((?:a|b|rc)\d+)?")
ABOUT = Path("src", "hangscope", "__about__.py")
CHANGELOG = Path("CHANGELOG.md")
UNRELEASED = "## [Unreleased]"
STEPS = ("docs", "wheels")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    parser.add_argument("--root", type=Path, default=ROOT, help="the clone (default: this one)")
    parser.add_argument(
        "--without", action="append", choices=STEPS, default=[], help="leave a step out, to try the rest"
    )
    parser.add_argument("--wheels", default="--twice --strict", help="options for release/wheels.py")
    options = parser.parse_args(argv)
    root: Path = options.root
    version: str = options.version
    check(root, version)
    notes = changed_changelog(root, version)
    set_version(root, version)
    run(["git", "commit", "-qam", f"Release {version}"], cwd=root)
    try:
        os.environ["SOURCE_DATE_EPOCH"] = run(["git", "log", "-1", "--format=%ct"], cwd=root).strip()
        build(root, version, notes, options.without, options.wheels.split())
    except BaseException:
        run(["git", "reset", "-q", "--hard", "HEAD~1"], cwd=root)
        say("nothing was released: the commit was taken back")
        raise
    run(["git", "tag", "-a", f"v{version}", "-F", "dist/notes.md", "--cleanup=verbatim"], cwd=root)
    say(f"tagged v{version}. To publish it: git push origin main v{version}")
    return 0


# ---- before ----------------------------------------------------------------------------------------------------------


def check(root: Path, version: str) -> None:
    """Whether there is something to release, and under this number."""
    if not VERSION.fullmatch(version):
        raise SystemExit(f"error: {version} is no version\nhint: such as 0.2.0 or 0.2.0rc1")
    if run(["git", "status", "--porcelain"], cwd=root).strip():
        raise SystemExit("error: the tree has changes that are not committed\nhint: git status")
    if run(["git", "tag", "--list", f"v{version}"], cwd=root).strip():
        raise SystemExit(f"error: v{version} was released already")
    current = current_version(root)
    if order(version) <= order(current):
        raise SystemExit(f"error: {version} is not after {current}, which this tree is")
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    if UNRELEASED not in text:
        raise SystemExit(f"error: {CHANGELOG} has no {UNRELEASED[3:]}")
    if not section(text, "Unreleased"):
        raise SystemExit(f"error: {CHANGELOG} says nothing under {UNRELEASED[3:]}")


def order(version: str) -> tuple[int, int, int, str]:
    """What sorts versions: a release comes after its candidates."""
    match = VERSION.fullmatch(version)
    assert match is not None, version
    return int(match[1]), int(match[2]), int(match[3]), match[4] or "~"


def current_version(root: Path) -> str:
    match = re.search(r'__version__ = "([^"]+)"', (root / ABOUT).read_text(encoding="utf-8"))
    assert match is not None
    return match[1]


# ---- changes ---------------------------------------------------------------------------------------------------------


def changed_changelog(root: Path, version: str) -> str:
    """Move what is unreleased under the version; returns it, as the notes."""
    path = root / CHANGELOG
    day = datetime.now(timezone.utc).date().isoformat()
    text = path.read_text(encoding="utf-8").replace(UNRELEASED, f"{UNRELEASED}\n\n## [{version}] - {day}", 1)
    path.write_text(text, encoding="utf-8")
    return release_notes(text, version)


def set_version(root: Path, version: str) -> None:
    path = root / ABOUT
    text = re.sub(r'__version__ = "[^"]+"', f'__version__ = "{version}"', path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")


# ---- what is published -----------------------------------------------------------------------------------------------


def build(root: Path, version: str, notes: str, without: list[str], wheel_options: list[str]) -> None:
    dist = root / "dist"
    if "wheels" not in without:
        say(run([sys.executable, "release/wheels.py", *wheel_options], cwd=root, timeout=7200), end="")
    dist.mkdir(exist_ok=True)
    if "docs" not in without:
        run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", "dist/site"], cwd=root)
        run([sys.executable, "release/man_pages.py", "--out", "dist/man"], cwd=root)
    (dist / "notes.md").write_text(notes, encoding="utf-8")
    bill = bill_of_materials(root, version, published_files(dist))
    (dist / f"hangscope-{version}.cdx.json").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
