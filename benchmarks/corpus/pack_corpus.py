"""`make corpus`: the recorded jobs with their truths as one archive that stands on its own, and the table of the docs.

    python benchmarks/corpus/pack_corpus.py --out dist             # the archive
    python benchmarks/corpus/pack_corpus.py --out dist --table     # and the tables of the docs and README, from it

In the archive the evidence lies in cases/, without any truth or verdict in it, and the truths in truths.json; beside
them lie the datasheet, the scoring command and one adapter a tool, which need nothing but Python and the tool. Two
archives of one commit are the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TESTS = ROOT / "tests"
VERSION = 1
"""Of the corpus: a case more, or a truth corrected, is a new version."""
NAME = f"hangscope-corpus-{VERSION}"
SCHEMA = "hangscope.corpus/1"
WHEN = 1_790_000_000
FOLDERS = {"nccl": TESTS / "cases", "gloo": TESTS / "cases_gloo", "incidents": TESTS / "incidents"}
ARCHIVES = {"links": TESTS / "recorded_links.tar.xz", "live": TESTS / "recorded_live.tar.xz"}
LEAKS = re.compile(r"^(truth\.json|verdict\.(json|txt|html)|ticket\.md)$")
"""What says, or has guessed, the answer."""
EXTRA = ("score.py", "answer_hangscope.py", "answer_torchfrtrace.py", "answer_nvrx.py", "answer_ras.py", "answering.py")
BEGIN = "<!-- made by make corpus: begin -->"
END = "<!-- made by make corpus: end -->"
TOOLS = ("hangscope", "torchfrtrace", "nvrx", "ras")
NVRX = ROOT / "build" / "nvrx"
"""Where `make corpus` puts NVRx: it asks for an older mcp than hangscope does, so not beside it."""


@dataclass(frozen=True)
class Case:
    """One recorded job: its files, and what was injected."""

    id: str
    files: dict[str, bytes]
    truth: dict[str, Any]


def cases() -> Iterator[Case]:
    for suite, folder in FOLDERS.items():
        for found in sorted(folder.glob("*/truth.json")):
            inside = (path for path in sorted(found.parent.rglob("*")) if path.is_file())
            files = {str(path.relative_to(found.parent)): path.read_bytes() for path in inside}
            yield case(f"{suite}/{found.parent.name}", files)
    for suite, archive in ARCHIVES.items():
        members: dict[str, dict[str, bytes]] = {}
        with tarfile.open(archive) as whole:
            for member in whole:
                content = whole.extractfile(member)
                if content is not None:
                    name, _, inside_name = member.name.partition("/")
                    members.setdefault(name, {})[inside_name] = content.read()
        for name, files in sorted(members.items()):
            yield case(f"{suite}/{name}", files)


def case(name: str, files: dict[str, bytes]) -> Case:
    said = json.loads(files["truth.json"])
    kept = {path: data for path, data in files.items() if not LEAKS.match(Path(path).name)}
    if "incident.json" in kept:  # its list of files names what was left out
        manifest = json.loads(kept["incident.json"])
        manifest["files"] = {path: entry for path, entry in manifest.get("files", {}).items() if path in kept}
        kept["incident.json"] = json.dumps(manifest, indent=1).encode()
    truth = {
        "hang": said.get("hang", said["kind"] not in ("none", "slow")),
        "kind": said["kind"],
        "culprits": said["culprits"],
        "accept": said.get("accept", []),
        "accept_kinds": said.get("accept_kinds", []),
        "link": said.get("link"),
    }
    return Case(name, kept, truth)


def contents(found: list[Case]) -> dict[str, bytes]:
    """Everything in the archive, by its path."""
    files = {f"cases/{one.id}/{path}": data for one in found for path, data in one.files.items()}
    truths = {"schema": SCHEMA, "version": VERSION, "cases": {one.id: one.truth for one in found}}
    files["truths.json"] = (json.dumps(truths, indent=1) + "\n").encode()
    files["DATASHEET.md"] = (HERE / "DATASHEET.md").read_bytes()
    files["LICENSE"] = (ROOT / "LICENSE").read_bytes()
    for name in EXTRA:
        files[name] = (HERE / name).read_bytes()
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in sorted(files.items()))
    files["SHA256SUMS"] = sums.encode()
    return files


def archive(files: dict[str, bytes]) -> bytes:
    """The archive's bytes, which depend on its contents alone."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as whole:
        for path, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{NAME}/{path}")
            member.size = len(data)
            member.mtime = WHEN
            member.mode = 0o644
            whole.addfile(member, io.BytesIO(data))
    return lzma.compress(packed.getvalue(), preset=6)


def write_tables(path: Path, page: Path, readme: Path) -> str:
    """Ask every tool that is here about the cases of the archive, score it, and put the tables into the pages."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(path) as whole:
            whole.extractall(folder, filter="data")
        top = Path(folder, NAME)
        answers = [out for tool in TOOLS if (out := asked(tool, top)) is not None]
        command = [sys.executable, top / "score.py", "--markdown", *answers]
        table = subprocess.run(command, cwd=top, check=True, capture_output=True, text=True).stdout
    table = re.sub(r"\| hangscope [^ |]+ \|", "| hangscope |", table)  # its version is that of the page
    put_between_marks(page, table)
    put_between_marks(readme, short_table(table))
    return table


def asked(tool: str, top: Path) -> Path | None:
    """A tool's answers, by its adapter in the archive; None where the tool is not here, which the adapter says."""
    print(f"asking {tool}", file=sys.stderr, flush=True)
    out = top / f"{tool}.json"
    environ = {**os.environ, "PYTHONPATH": str(NVRX)} if tool == "nvrx" else None
    done = subprocess.run([sys.executable, top / f"answer_{tool}.py", "-o", out], cwd=top, check=False, env=environ)
    return out if done.returncode == 0 else None


def short_table(table: str) -> str:
    """README's: the suite that all tools read something of, and the columns that all of them are scored on."""
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in table.splitlines()]
    column = {name: at for at, name in enumerate(rows[0])}
    lines = [
        "| tool | exactly the injected ranks | accuses an innocent rank | names nobody in a hang |",
        "|---|---|---|---|",
    ]
    for row in rows[2:]:
        if row[column["suite"]] == "nccl":
            right, wrong, nobody = (
                row[column[name]].replace("/", " of ") for name in ("exact", "innocent", "names nobody")
            )
            lines.append(f"| {row[column['tool']]} | {right} | {wrong} | {nobody} |")
    return "\n".join(lines) + "\n"


def put_between_marks(page: Path, table: str) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table}{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the archive goes")
    parser.add_argument("--table", action="store_true", help="write the tables of docs/benchmark.md and README.md")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{NAME}.tar.xz"
    path.write_bytes(archive(contents(list(cases()))))
    print(f"{path}: {path.stat().st_size >> 10} KiB")
    if options.table:
        print(write_tables(path, ROOT / "docs" / "benchmark.md", ROOT / "README.md"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
