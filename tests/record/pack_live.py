"""Pack incidents that tests/live_scripts/run.py --nccl, --engines or --shifts nccl left with --keep, with their truth.

    python3 tests/record/pack_live.py FOLDER tests/recorded_live.tar.xz OLD=NEW… NAME…
    python3 tests/record/pack_live.py FOLDER tests/recorded_engines.tar.xz OLD=NEW… NAME…
    python3 tests/record/pack_live.py FOLDER tests/recorded_shifts.tar.xz OLD=NEW… NAME…
    python3 tests/record/pack_live.py FOLDER tests/recorded_outside.tar.xz OLD=NEW… NAME…    of outside_nccl.py

Names are those of the folders. Verdicts are left out, and black boxes (large) of jobs whose recorder has all that they
have; paths of the machine (each with what to write instead) and its serial numbers are made neutral.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "live_scripts"), str(HERE.parents[1] / "src")]

from outside_nccl import fewer  # noqa: E402
from record_neutral import Replacements, leaks, neutral_pickle, neutral_text  # noqa: E402 -- neighbours that are no packages
from run import _engines, _nccl, _shifts, incident_of, place_of  # noqa: E402

from hangscope.incident.layout import GPUS_ASKED_FILE, GPUS_ASKED_SCHEMA  # noqa: E402

_SERIALS = re.compile(rb"(?m)^( +(?:GPU UUID|Serial Number|GPU PDI|Board Part Number) +: ).*$")
_UUID = re.compile(rb"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RELEASE = re.compile(rb'("kernel": )"[^"]*"')


def neutral(path: Path, words: Replacements) -> bytes:
    data = path.read_bytes()
    if data[:1] == b"\x80":
        return neutral_pickle(data, words)
    if path.suffix == ".ncclbb":
        return data  # numbers and names of NCCL's functions
    data = _UUID.sub(b"GPU-00000000-0000-0000-0000-000000000000", _SERIALS.sub(rb"\1N/A", neutral_text(data, words)))
    return data if "gpu" in path.parts else _RELEASE.sub(rb'\1"6.8.0"', data)  # of Linux, not of a GPU


def resize(node: Path, words: Replacements) -> None:
    """How large a node's files were when its GPUs were asked, for the files as they are written here; also in
    gpu/asked.json, which recorders before this did not write."""
    value = json.loads(node.read_text())
    asked = value.get("gpu_cores")
    if asked is None:
        return
    for name, size in asked["files"].items():
        path = node.parent / name
        if path.is_file() and path.suffix == ".log":
            asked["files"][name] = len(neutral_text(path.read_bytes()[:size], words))
    node.write_text(json.dumps(value))
    (node.parent / GPUS_ASKED_FILE).write_text(json.dumps({"schema": GPUS_ASKED_SCHEMA, "gpu_cores": asked}))


def main() -> int:
    folder, archive = map(Path, sys.argv[1:3])
    words = [(old, new) for old, found, new in (word.partition("=") for word in sys.argv[3:]) if found]
    names = [word for word in sys.argv[3:] if "=" not in word]
    engines = {place_of(row): row for row in _engines()}
    truths = {place_of(row): row for row in (*fewer("nccl"), *_nccl("nccl"), *_shifts("nccl"))} | engines
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            kept = Path(scratch, name)
            left_out = ("verdict.*",) if name in engines else ("verdict.*", "*.ncclbb")
            row = truths[name.partition(".")[0]]
            shutil.copytree(incident_of(row, folder / name), kept, ignore=shutil.ignore_patterns(*left_out))
            for node in kept.glob("nodes/*/node.json"):
                resize(node, words)
            for path in (p for p in kept.rglob("*") if p.is_file()):
                path.write_bytes(neutral(path, words))
            outcome = "pause" if row.to_end else row.outcome
            truth = {"kind": row.kind, "culprits": row.ranks, "line": row.line, "outcome": outcome}
            (kept / "truth.json").write_text(json.dumps(truth))
        for leak in leaks(Path(scratch), [old for old, _ in words]):
            print(f"leak: {leak}")
        with tarfile.open(archive, "w:xz", preset=9) as stream:
            for path in sorted(Path(scratch).rglob("*")):
                info = stream.gettarinfo(path, str(path.relative_to(scratch)))
                info.uid, info.gid, info.uname, info.gname, info.mtime = 0, 0, "", "", 0
                with path.open("rb") if path.is_file() else open("/dev/null", "rb") as source:
                    stream.addfile(info, source if path.is_file() else None)
    print(f"{archive}: {archive.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
