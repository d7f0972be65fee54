"""Every recorded case gives the same verdict as a folder, as a bundle, redacted, and with aliases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hangscope
from hangscope.incident.bundle import write_bundle
from hangscope.incident.unpack import extract

CASES = sorted(path for path in (Path(__file__).parent / "cases").iterdir() if path.is_dir())


def _answer(path: Path, aliases: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a verdict must keep: kind, culprits, victims, operation, link, first report; hosts by their true names."""
    true = {alias: name for name, alias in (aliases or {}).items()}
    verdict = hangscope.diagnose(hangscope.load(path))
    operation, link, first, last = verdict.operation, verdict.link, verdict.first_reported, verdict.last_completed
    return {
        "hang": verdict.hang,
        "kind": verdict.kind,
        "confidence": verdict.confidence,
        "culprits": [(c.rank, true.get(c.node or "", c.node), c.local_rank, c.gpu, c.pid) for c in verdict.culprits],
        "victims": [(v.rank, v.waits_for, v.group, v.operation) for v in verdict.victims],
        "operation": operation
        and (operation.group, operation.members, operation.seq, operation.name, dict(operation.state_by_rank)),
        "lines": operation and [(frame.name, frame.line) for frame in operation.frames],
        "last": last and (last.group, last.seq, last.name, last.at_ns),
        "link": link and (link.sender.rank, link.receiver.rank, link.sender.nic, link.channel),
        "first": first and (first.rank, true.get(first.node or "", first.node), first.at_ns),
        "ruled_out": [out.kind for out in verdict.ruled_out],
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_survives_every_bundle(case: Path, tmp_path: Path) -> None:
    """Folder, plain bundle, redacted bundle, unpacked bundle and pseudonymised bundle are diagnosed alike."""
    truth = _answer(case)
    assert _answer(write_bundle(case, tmp_path / "plain.tar.gz", redact=False).path) == truth
    redacted = write_bundle(case, tmp_path / "redacted.tar.gz")
    assert _answer(redacted.path) == truth
    assert redacted.left_out == ()
    extract(redacted.path, tmp_path / "unpacked")
    assert _answer(tmp_path / "unpacked") == truth
    aliased = write_bundle(case, tmp_path / "aliased.tar.gz", pseudonymise=True)
    assert aliased.map_file is not None
    aliases = json.loads(aliased.map_file.read_text())["hosts"]
    assert _answer(aliased.path, aliases) == truth
    hosts = {row["host"] for row in json.loads((case / "roster.json").read_text())} if has_roster(case) else set()
    assert hosts <= set(aliases)


def has_roster(case: Path) -> bool:
    return (case / "roster.json").exists()


def test_there_are_cases() -> None:
    """All recorded cases are tried."""
    assert len(CASES) >= 18
