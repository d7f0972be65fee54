"""The docs of a version onto the branch gh-pages, beside those of the others: `make site VERSION=0.2.0`, or `dev`.

By mike: the site is built strictly, and committed to that branch of the repository in which this is called, in a folder
of its own. A release is listed by its number without the last part (0.2.1 replaces 0.2.0) and is "latest", to which
the bare address leads; a candidate and `dev` are not. Nothing is pushed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from say import run, say

ROOT = Path(__file__).parents[1]
BRANCH = "gh-pages"
VERSION = re.compile(r"v?((\d+\.\d+)\.\d+)((?:a|b|rc)\d+)?")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="0.2.0, v0.2.0, 0.2.0rc1 or dev")
    parser.add_argument("--config", type=Path, default=ROOT / "mkdocs.yml", help="another site's settings")
    options = parser.parse_args()
    bin = Path(sys.executable).parent
    environ = {**os.environ, "PATH": f"{bin}{os.pathsep}{os.environ.get('PATH', '')}"}  # mike starts `mkdocs`
    mike = bin / "mike"
    chosen = ["--config-file", str(options.config), "--branch", BRANCH]
    folder, title, latest = listed_as(options.version)
    aliases = ["--update-aliases", "--alias-type", "copy", folder, "latest"] if latest else [folder]
    run([mike, "deploy", *chosen, "--title", title, *aliases], env=environ)
    if latest:
        run([mike, "set-default", *chosen, "latest"], env=environ)
    say(f"{title} is on {BRANCH} in {folder}. To publish it: git push origin {BRANCH}")
    return 0


def listed_as(version: str) -> tuple[str, str, bool]:
    """A version's folder, what the switcher calls it, and whether it becomes "latest"."""
    match = VERSION.fullmatch(version)
    if version != "dev" and match is None:
        raise SystemExit(f"error: {version} is no version\nhint: such as 0.2.0, 0.2.0rc1 or dev")
    if match is None:
        return "dev", "dev", False
    if match[3]:
        return f"{match[1]}{match[3]}", f"{match[1]}{match[3]}", False
    return match[2], match[1], True


if __name__ == "__main__":
    sys.exit(main())
