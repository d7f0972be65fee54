"""Work is done once: a file is opened once, an archive decompressed once, and a log is not read as JSON first."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.reader import evidence_lines, find_files
from hangscope.reader.load import load
from hangscope.report.export import to_dict
from hangscope.safeio import bounded_json, gzip_stream, limits, open_archive

TESTS = Path(__file__).parents[1]
CASES = [TESTS / "cases" / "alltoall", TESTS / "cases" / "async_late", TESTS / "incidents" / "gpu"]
NCCL_LOG = next((TESTS / "cases" / "alltoall").rglob("nccl.*.log"))

_opened: Counter[str] = Counter()
_below: list[str] = []


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _below and isinstance(arguments[0], str) and arguments[0].startswith(_below[0]):
        _opened[arguments[0]] += 1


sys.addaudithook(_count)  # cannot be taken away again: it counts only while somebody asks


@contextmanager
def counted_opens(root: Path) -> Iterator[Counter[str]]:
    """How often each file below a directory is opened, by whatever means, meanwhile."""
    _opened.clear()
    _below.append(str(root))
    try:
        yield _opened
    finally:
        _below.clear()


@contextmanager
def counted_streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes that were decompressed, one number a piece."""
    pieces: list[int] = []
    spend = gzip_stream.Budget.spend

    def counting(budget: gzip_stream.Budget, size: int) -> None:
        pieces.append(size)
        spend(budget, size)

    with monkeypatch.context() as patch:
        patch.setattr(gzip_stream.Budget, "spend", counting)
        yield pieces


def _verdict(path: Path) -> dict[str, Any]:
    return to_dict(diagnose(load(path)))


def _tar(folder: Path, target: Path) -> Path:
    with tarfile.open(target, "w:gz") as archive:
        archive.add(folder, folder.name)
    return target


def _files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file() and path.name != "truth.json"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_file_is_opened_once(case: Path) -> None:
    """Dumps, logs, stacks, rosters, nodes' files and black boxes: each is opened once in a whole diagnosis."""
    with counted_opens(case) as opened:
        load(case)
    assert {file for file in _files(case) if not Path(file).name.startswith("verdict")} <= opened.keys()
    assert not [file for file, times in opened.items() if times > 1 and not Path(file).is_dir()]


def test_with_more_files_than_handles_a_file_is_opened_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all files can stay open, the rest is looked at and then read, and no handle is left."""
    monkeypatch.setattr(limits, "OPEN_FILES", 0)
    with counted_opens(CASES[1]) as opened:
        load(CASES[1])
    assert max(times for file, times in opened.items() if not Path(file).is_dir()) == 2


def test_no_file_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked at and not read, such as an older attempt's, is closed as well."""
    kept: list[io.BufferedReader] = []

    def remembered(path: str | Path, **options: Any) -> Any:
        kept.append(open_file(path, **options))
        return kept[-1]

    open_file = find_files.open_file  # type: ignore[attr-defined]
    monkeypatch.setattr(find_files, "open_file", remembered)
    load(CASES[1])
    assert kept and all(stream.closed for stream in kept)


@pytest.mark.parametrize("held", [limits.ARCHIVE_HELD_BYTES, 0])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_archive_is_decompressed_once(
    case: Path, held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its members wait in memory or are read as they come, and the verdict is the same."""
    archive = _tar(case, tmp_path / "job.tar.gz")
    with gzip.open(archive) as stream:
        whole = len(stream.read())
    expected = _verdict(archive)
    monkeypatch.setattr(limits, "ARCHIVE_HELD_BYTES", held)
    with counted_streams(monkeypatch) as pieces, counted_opens(tmp_path) as opened:
        assert _verdict(archive) == expected
    assert sum(pieces) <= whole
    assert opened[str(archive)] == 1


@pytest.mark.parametrize("held", [limits.ARCHIVE_HELD_BYTES, 0])
def test_of_an_archive_of_several_attempts_the_newest_counts(
    held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of an older attempt before a newer one came is not part of the job."""
    monkeypatch.setattr(limits, "ARCHIVE_HELD_BYTES", held)
    for attempt, words in enumerate(("[rank0]: ValueError: old\n", "[rank0]: RuntimeError: new\n")):
        folder = tmp_path / "job" / f"attempt_{attempt}" / "0"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(f"[rank0]: Traceback (most recent call last):\n{words}")
    job = load(_tar(tmp_path / "job", tmp_path / "job.tar.gz"))
    assert [error.type for error in job.facts.errors] == ["RuntimeError"]
    assert [gap.why for gap in job.gaps if gap.what.startswith("attempt")] == [
        "an older attempt: 1 files were left out"
    ]


@pytest.mark.parametrize("held", [limits.ARCHIVE_HELD_BYTES, 0])
def test_a_refused_dump_in_an_archive_is_its_nodes(held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which node a file belongs to is known also where its directory's description comes behind it."""
    monkeypatch.setattr(limits, "ARCHIVE_HELD_BYTES", held)
    with tarfile.open(tmp_path / "job.tar.gz", "w:gz") as archive:
        for name, data in (
            ("a/nccl_trace_rank_3", b"\x80\x02}q\x00broken"),
            ("a/rank_3.log", b"[rank3]: RuntimeError: x\n"),
            ("a/node.json", json.dumps({"schema": "hangscope.node/1", "node": "gpu-a017"}).encode()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    job = load(tmp_path / "job.tar.gz")
    assert [gap.node for gap in job.gaps if gap.rank == 3] == ["gpu-a017"]
    assert job.nodes == {3: "gpu-a017"}


def test_archives_of_other_incidents_are_not_read_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several small bundles side by side each is decompressed, and only the newest one's files are recognised."""
    from hangscope.reader import first_look

    for number in range(3):
        incident = tmp_path / f"hang-{number}"
        shutil.copytree(CASES[2], incident)
        manifest = json.loads((incident / "incident.json").read_text())
        manifest.update(attempt=str(number), captured_at=f"2026-11-15T02:3{number}:00Z")
        (incident / "incident.json").write_text(json.dumps(manifest))
        _tar(incident, tmp_path / f"hang-{number}.tar.gz")
        shutil.rmtree(incident)
    read: list[str] = []
    read_now = first_look.Member.read_now

    def remembered(member: first_look.Member) -> None:
        read.append(member.file)
        read_now(member)

    monkeypatch.setattr(first_look.Member, "read_now", remembered)
    assert load(tmp_path).attempt == "2"
    assert read and all("hang-2.tar.gz!" in file for file in read)


def test_a_log_that_begins_with_a_bracket_is_not_read_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's log with times begins so: no whole log is ever given to the JSON parser."""
    assert NCCL_LOG.read_bytes().startswith(b"[")
    shutil.copy(NCCL_LOG, tmp_path)
    parsed: list[int] = []
    loads = bounded_json.loads
    monkeypatch.setattr(bounded_json, "loads", lambda raw, **options: (parsed.append(len(raw)), loads(raw, **options)))
    assert load(tmp_path).facts.communicators
    with (tmp_path / NCCL_LOG.name).open("rb") as source:
        assert evidence_lines.keep_evidence(source, io.BytesIO())
    assert not parsed


def test_a_log_with_many_brackets_is_read(tmp_path: Path) -> None:
    """As JSON it would take more memory than is given to any, which once cost the whole log."""
    log = tmp_path / "rank_0.log"
    log.write_bytes(b"[2026-11-15 02:30:11] step 1\n" + b"[" * (3 << 20) + b"\n[rank0]: RuntimeError: lost\n")
    assert bounded_json.weight(log.read_bytes()) > limits.JSON_MEMORY
    job = load(log)
    assert not [gap for gap in job.gaps if "JSON" in gap.why]
    assert [failure.text for failure in job.facts.failures if "lost" in failure.text] or job.facts.errors
    kept = io.BytesIO()
    with log.open("rb") as source:
        assert evidence_lines.keep_evidence(source, kept)
    assert b"RuntimeError: lost" in kept.getvalue()


def test_members_of_nested_archives_count_against_one_budget() -> None:
    """Layers inside each other are decompressed once each, and all of them count."""
    inner = gzip.compress(b"x" * 1000)
    outer = gzip.compress(inner)
    spent: list[int] = []
    spend = gzip_stream.Budget.spend
    budget_spend = lambda budget, size: (spent.append(size), spend(budget, size))[1]  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gzip_stream.Budget, "spend", budget_spend)
        ((_, data),) = open_archive.members(io.BytesIO(outer), file="x", refuse=lambda name, why: None)
    assert data == b"x" * 1000
    assert sum(spent) == len(inner) + 1000
