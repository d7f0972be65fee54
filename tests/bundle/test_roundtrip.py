"""Every recorded case gives the same verdict as a folder, as a bundle, redacted, and with aliases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hangscope
from hangscope.bundle.pack import write_bundle
from hangscope.bundle.unpack import extract
from hangscope.cli.main import main

HERE = Path(__file__).parents[1]
CASES = sorted(path for path in (HERE / "cases").iterdir() if path.is_dir())
INCIDENTS = sorted(path for path in (HERE / "incidents").iterdir() if path.is_dir())
EXCERPTS = sorted((HERE / "excerpts").glob("*.txt"))


def _answer(path: Path, aliases: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a verdict must keep: kind, culprits, victims, operation, link, first report; hosts by their true names."""
    true = {alias: name for name, alias in (aliases or {}).items()}

    def host(node: str | None) -> str | None:
        """Without its domain, which an alias stands for, too."""
        return true.get(node, node.partition(".")[0]) if node else node

    verdict = hangscope.diagnose(hangscope.load(path))
    operation, link, first, last = verdict.operation, verdict.link, verdict.first_reported, verdict.last_completed
    return {
        "hang": verdict.hang,
        "kind": verdict.kind,
        "confidence": verdict.confidence,
        "culprits": [(c.rank, host(c.node), c.local_rank, c.gpu, c.pid) for c in verdict.culprits],
        "victims": [(v.rank, v.waits_for, v.group, v.operation) for v in verdict.victims],
        "operation": operation
        and (operation.group, operation.members, operation.seq, operation.name, dict(operation.state_by_rank)),
        "lines": operation and [(frame.name, frame.line) for frame in operation.frames],
        "last": last and (last.group, last.seq, last.name, last.at_ns),
        "link": link and (link.sender.rank, link.receiver.rank, link.sender.nic, link.channel),
        "first": first and (first.rank, host(first.node), first.at_ns),
        "ruled_out": [out.kind for out in verdict.ruled_out],
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_survives_every_bundle(case: Path, tmp_path: Path) -> None:
    """Folder, plain, redacted and unpacked bundle, one of evidence alone and those with aliases are diagnosed alike."""
    truth = _answer(case)
    assert _answer(write_bundle(case, tmp_path / "plain.tar.gz", redact=False).path) == truth
    redacted = write_bundle(case, tmp_path / "redacted.tar.gz")
    assert _answer(redacted.path) == truth
    assert redacted.left_out == ()
    extract(redacted.path, tmp_path / "unpacked")
    assert _answer(tmp_path / "unpacked") == truth
    aliases = _survives(case, truth, tmp_path)
    hosts = {row["host"] for row in json.loads((case / "roster.json").read_text())} if has_roster(case) else set()
    assert hosts <= set(aliases)


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_a_recorded_incident_survives_the_default_bundle(incident: Path, tmp_path: Path) -> None:
    """What `run` recorded is diagnosed alike from the default bundle, and from one with aliases."""
    _survives(incident, _answer(incident), tmp_path)


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda excerpt: excerpt.stem)
def test_an_excerpt_survives_the_default_bundle(excerpt: Path, tmp_path: Path) -> None:
    """A log that somebody pasted is diagnosed alike from the default bundle, and from one with aliases."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/job.log").write_bytes(excerpt.read_bytes())
    _survives(tmp_path / "in", _answer(tmp_path / "in"), tmp_path)


def _survives(source: Path, truth: dict[str, Any], scratch: Path) -> dict[str, str]:
    """The default bundle's verdict is the true one, that of `--pseudonymise` but for aliases; returns these."""
    default = scratch / "default.tar.gz"
    assert main(["bundle", str(source), "-o", str(default)]) == 0
    assert _answer(default) == truth
    aliased = scratch / "aliased.tar.gz"
    assert main(["bundle", str(source), "-o", str(aliased), "--pseudonymise"]) == 0
    aliases: dict[str, str] = json.loads((scratch / "aliased.aliases.json").read_text())["hosts"]
    assert _answer(aliased, aliases) == truth
    return aliases


def has_roster(case: Path) -> bool:
    return (case / "roster.json").exists()


def test_there_are_cases() -> None:
    """All recorded cases are tried."""
    assert len(CASES) >= 18
    assert len(INCIDENTS) >= 8
    assert len(EXCERPTS) >= 20


@pytest.mark.parametrize(
    "options",
    [
        ("--form", "json", "--fault", "absent"),
        ("--form", "python4", "--fault", "mismatch", "--gzip"),
        ("--form", "python5", "--fault", "dead", "--torch", "2.4"),
        ("--form", "pickle", "--fault", "network", "--torch", "2.2"),
        ("--form", "pickle", "--fault", "frozen", "--backend", "nccl2", "--torch", "2.15"),
    ],
    ids=" ".join,
)
def test_every_form_of_dump_survives(options: tuple[str, ...], tmp_path: Path) -> None:
    """Dumps of every version and encoding, also compressed, are diagnosed alike after redaction and with aliases."""
    source = tmp_path / "job"
    assert main(["simulate", "-o", str(source), "--ranks", "16", "--entries", "60", *options]) == 0
    truth = _answer(source)
    assert truth["hang"]
    redacted = write_bundle(source, tmp_path / "redacted.tar.gz")
    assert redacted.left_out == ()
    assert _answer(redacted.path) == truth
    aliased = write_bundle(source, tmp_path / "aliased.tar.gz", pseudonymise=True)
    assert aliased.map_file is not None
    assert _answer(aliased.path, json.loads(aliased.map_file.read_text())["hosts"]) == truth


@pytest.mark.torch
def test_a_live_incident_survives(tmp_path: Path) -> None:
    """An incident that was recorded from a real job, and its parts collected again, are diagnosed alike."""
    pytest.importorskip("torch")
    from hangscope.incident.collect import collect
    from hangscope.incident.collect.directories import Directory

    assert main(["demo", "--dir", str(tmp_path / "live")]) == 0
    (incident,) = [path.parent for path in (tmp_path / "live").rglob("incident.json")]
    truth = _answer(incident)
    assert [rank for rank, *_ in truth["culprits"]] == [2]
    aliased = write_bundle(incident, tmp_path / "aliased.tar.gz", pseudonymise=True)
    assert aliased.map_file is not None
    assert _answer(aliased.path, json.loads(aliased.map_file.read_text())["hosts"]) == truth
    assert _answer(write_bundle(incident, tmp_path / "redacted.tar.gz").path) == truth
    collect(tmp_path / "collected", [Directory(incident)])
    assert _answer(tmp_path / "collected") == truth
