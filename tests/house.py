"""How the house reads, in numbers: `python tests/house.py [ROOM]` lists what is to be simplified, by room.

* packed assignments (`a, b = x, y`), which save a line and cost the reader one;
* words of our own where the field has one.

How long a function is and how many ways lead through it is ruff's to say (C901 at 15): stricter counts of our own made
functions of exactly 60 lines, and names and folders for the sake of a number.

`python tests/house.py --lines [PACKAGE]` counts lines of code by room, without blanks, comments and docstrings; of
another checkout where its `src/hangscope` is given.

`test_architecture.py` asserts all of it, but for what house_exceptions.ini lists. Those lists may only shrink: delete a
line, or let `python tests/house.py --write-exceptions` write them anew from what there is, with the reasons they have.
"""

from __future__ import annotations

import ast
import configparser
import io
import math
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "hangscope"
MOST_PACKED = 1.0
"""Packed assignments in a hundred lines of a room."""
EXCEPTIONS = Path(__file__).with_name("house_exceptions.ini")
OWN_WORDS = (
    *("knot", "fate", "standing", "whom", "told", "goes_on", "tardiness", "custom", "departure", "joining", "settle"),
    *("heard?", "deed", "mate", "astray", "ragged", "felt", "spoken_of", "lonely", "roll_call", "slab", "usefulness"),
)
"""Words of our own where the field has one, with their endings."""
OWN_WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(OWN_WORDS)})(?:s|d|ed|ing)?(?![a-z])", re.I)
OWN_NAME = re.compile(r"(?<![a-z])stands?(?![a-z])", re.I)
"""In names alone: what does not move waits, is blocked or is at a line."""

_NO_CODE = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}


@dataclass(frozen=True)
class Finding:
    """One thing to simplify: where, how bad, and what."""

    room: str
    kind: str
    where: str
    size: int


def modules(package: Path = PACKAGE) -> list[Path]:
    return sorted(package.rglob("*.py"))


def packed(tree: ast.AST) -> list[int]:
    """Lines that assign several values to several names at once; an exchange (`a, b = b, a`) is no packing."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            left = {ast.unparse(part) for part in target.elts}
            right = {ast.unparse(part) for part in node.value.elts}
            if left != right:
                found.append(node.lineno)
    return found


def own_words(text: str) -> list[tuple[int, str]]:
    found = [(at, m[0]) for at, line in enumerate(text.splitlines(), 1) for m in OWN_WORD.finditer(line)]
    names = ((token.start[0], token.string) for token in tokens(text) if token.type == tokenize.NAME)
    return found + [(at, name) for at, name in names if OWN_NAME.search(name)]


def tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(text).readline)


def code_lines(text: str) -> int:
    """Lines with code on them: no blanks, no comments, and no docstrings, neither of functions nor of values."""
    written = {
        line for token in tokens(text) if token.type not in _NO_CODE for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            written -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(written)


def room(path: Path, package: Path = PACKAGE) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


def findings(path: Path) -> Iterator[Finding]:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    name = str(path.relative_to(PACKAGE))
    for line in packed(tree):
        yield Finding(room(path), "packed", f"{name}:{line}", 1)
    for line, word in [*own_words(text), *own_words(f"{path.stem}\n")]:
        yield Finding(room(path), "words", f"{name}:{line} {word}", 1)


def count_lines(package: Path) -> None:
    """Files and lines of code, by room."""
    files = Counter[str]()
    lines_of = Counter[str]()
    for path in modules(package):
        files[room(path, package)] += 1
        lines_of[room(path, package)] += code_lines(path.read_text(encoding="utf-8"))
    print(f"{'room':16}{'files':>8}{'code':>8}")
    for name, count in [*sorted(lines_of.items()), ("all", sum(lines_of.values()))]:
        print(f"{name:16}{files[name] or sum(files.values()):>8}{count:>8}")


def undescribed() -> set[str]:
    """Folders whose `__init__` does not say what lives there."""
    starts = [path for path in modules() if path.stem == "__init__"]
    return {
        str(path.parent.relative_to(PACKAGE))
        for path in starts
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    }


def sizes() -> Counter[str]:
    """Lines by room."""
    counted = Counter[str]()
    for path in modules():
        counted[room(path)] += len(path.read_text(encoding="utf-8").splitlines())
    return counted


# ---- what is over the limits, in the form of house_exceptions.ini ----------------------------------------------------


def all_findings() -> list[Finding]:
    return [finding for path in modules() for finding in findings(path)]


def words_of(found: list[Finding]) -> set[str]:
    """Words of our own, as `file:word`."""
    return {re.sub(r":\d+ ", ":", finding.where).lower() for finding in found if finding.kind == "words"}


def packed_shares(found: list[Finding]) -> dict[str, float]:
    """Packed assignments in a hundred lines of each room."""
    counts = Counter(finding.room for finding in found if finding.kind == "packed")
    return {name: 100 * counts[name] / size for name, size in sizes().items()}


def exceptions() -> dict[str, dict[str, str]]:
    """What is let through: section → name → reason or number."""
    read = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read_string(EXCEPTIONS.read_text(encoding="utf-8"))
    return {section: dict(read[section]) for section in read.sections()}


def write_exceptions() -> None:
    """Let through what is over the limits today, and nothing else."""
    found = all_findings()
    shares = sorted(packed_shares(found).items())
    values: dict[str, dict[str, object]] = {
        "packed": {name: math.ceil(10 * share) / 10 for name, share in shares if share > MOST_PACKED},
        "words": dict.fromkeys(sorted(words_of(found)), "there"),
    }
    head = EXCEPTIONS.read_text(encoding="utf-8").partition("\n[")[0]
    sections = ("".join(f"{name} = {why}\n" for name, why in lines.items()) for lines in values.values())
    text = "".join(f"\n[{name}]\n{lines}" for name, lines in zip(values, sections, strict=True))
    EXCEPTIONS.write_text(f"{head.rstrip()}\n{text}", encoding="utf-8")


def main() -> None:
    wanted = sys.argv[1:]
    if wanted[:1] == ["--lines"]:
        count_lines(Path(wanted[1]).resolve() if len(wanted) > 1 else PACKAGE)
        return
    if wanted == ["--write-exceptions"]:
        write_exceptions()
        return
    found = all_findings()
    lines_of = sizes()
    kinds = ("packed", "words")
    print(f"{'room':16}{'lines':>8}" + "".join(f"{kind:>10}" for kind in kinds))
    for name, size in sorted(lines_of.items()):
        counts = Counter(finding.kind for finding in found if finding.room == name)
        print(f"{name:16}{size:>8}" + "".join(f"{counts[kind]:>10}" for kind in kinds))
    counts = Counter(finding.kind for finding in found)
    print(f"{'all':16}{sum(lines_of.values()):>8}" + "".join(f"{counts[kind]:>10}" for kind in kinds))
    for finding in sorted(found, key=lambda finding: (finding.kind, -finding.size, finding.where)):
        if any(finding.where.startswith(prefix) for prefix in wanted):
            print(f"{finding.kind:9} {finding.size:4} {finding.where}")


if __name__ == "__main__":
    main()
