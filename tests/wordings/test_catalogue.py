"""Every row of the catalogue of wordings keeps what it promises: its example is found wherever logs are found."""

import io
import re
from dataclasses import fields
from pathlib import Path

import pytest

import hangscope
from hangscope.errors import NotFoundError
from hangscope.failure_kinds import FailureKind
from hangscope.reader.load import load
from hangscope.reader.logs.log_file import TextFile
from hangscope.safeio.evidence_names import WORDS, holds_evidence
from hangscope.wordings import READ_ELSEWHERE, ROWS, Wording, find
from hangscope.wordings.wording import GROUPS
from hostile.fuzz_lines import known_lines

FAILURES = [row for row in ROWS if not row.recovers]
IDS = [f"{row.library}-{row.kind}-{index}" for index, row in enumerate(FAILURES)]
PREFIXES = {
    "bare": "",
    "torchrun": "[default0]:",
    "tag": "[rank0]:",
    "slurm": "0: ",
    "mpirun": "[1,0]<stderr>:",
    "ray": "(TrainWorker pid=4242, ip=10.1.2.3) ",
    "pods": "[pod/llm-worker-0/trainer] ",
    "docker": "2026-11-18T02:30:11.123456789Z ",
    "journald": "Nov 18 02:30:11 node-7 train[812]: ",
    "compose": "trainer-1  | ",
}


EVERY = [*FAILURES, *READ_ELSEWHERE]
EVERY_ID = [f"{row.library}-{row.kind}-{index}" for index, row in enumerate(EVERY)]


def read(text: str) -> TextFile:
    log = TextFile("job.log")
    data = text.encode()
    log.read(io.BytesIO(data), len(data))
    return log


def kinds(text: str) -> set[str]:
    return {said.failure.kind for said in read(text).worded.failures}


def behind(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.rstrip("\n").split("\n"))


@pytest.mark.parametrize("row", FAILURES, ids=IDS)
def test_an_example_is_read_by_its_own_row(row: Wording) -> None:
    """The first line of a row's example is found by that row before any other."""
    first = next(found for line in row.example.split("\n") for found, _ in find(line))
    assert first is row
    assert isinstance(row.kind, FailureKind)
    assert row.seen
    assert row.library


@pytest.mark.parametrize("row", FAILURES, ids=IDS)
@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_an_example_is_read_behind_the_usual_prefixes(row: Wording, prefix: str) -> None:
    """What launchers, runtimes and pods put in front of a line does not hide it."""
    if row.kernel and prefix.startswith("Nov"):
        pytest.skip("the kernel has a prefix of its own there")
    assert row.kind in kinds(behind(prefix, row.example))


@pytest.mark.parametrize("row", FAILURES, ids=IDS)
def test_an_example_in_a_ticket_is_no_failure(row: Wording) -> None:
    """A message that a person quotes in a sentence did not happen here."""
    quoted = row.example.split("\n")[0].replace('"', "").replace("`", "")
    for ticket in (
        f'We saw the message "{quoted}" twice last week, what does it mean?\n',
        f"Has anybody seen `{quoted}` before?\n",
        f"- it says “{quoted}” and then goes on\n",
    ):
        assert not kinds(ticket)


@pytest.mark.parametrize("row", EVERY, ids=EVERY_ID)
def test_an_example_passes_the_look_at_large_trees(row: Wording) -> None:
    """A file that holds nothing but the example is taken from among tens of thousands."""
    data = row.example.encode()
    assert any(word in data for word in WORDS)
    assert holds_evidence(data, telling=True, name="worker-7.log")


def test_examples_are_found_in_a_tree_of_three_thousand_files(tmp_path: Path) -> None:
    """None of the examples is lost where they lie among three thousand other logs."""
    for number in range(3000):
        folder = tmp_path / f"part{number // 100:02}"
        folder.mkdir(exist_ok=True)
        (folder / f"worker-{number}.log").write_text("loading shard\n")
    for number, row in enumerate(EVERY):
        (tmp_path / f"zz-node-{number:03}.log").write_text(row.example)
    job = hangscope.load(tmp_path)
    facts = job.facts
    said = [*facts.failures, *facts.watchdog, *facts.errors, *facts.kernel, *facts.transport]
    read_files = {Path(each.source.file).name for each in said}
    lost = [EVERY_ID[n] for n in range(len(EVERY)) if f"zz-node-{n:03}.log" not in read_files]
    assert not lost


BESIDE_FAILURES = ("progress", "signs_of_life", "log_ranks", "logs", "quotes", "versions", "machines", "last_words")


def tells_of_a_failure(file: Path) -> bool:
    try:
        facts = load(file).facts
    except NotFoundError:
        return False
    return any(getattr(facts, each.name) for each in fields(facts) if each.name not in BESIDE_FAILURES)


def test_no_line_that_is_seen_alone_is_lost_in_a_large_tree(tmp_path: Path) -> None:
    """Of all lines of recorded, pasted and documented logs, each that tells of a failure alone passes the look."""
    file = tmp_path / "worker-7.log"
    lost = []
    known = known_lines()
    for line in known:
        data = f"{line}\n".encode("utf-8", "replace")
        if not holds_evidence(data, telling=True, name=file.name) and read(data.decode()).useful:
            file.write_bytes(data)
            lost += [line] if tells_of_a_failure(file) else []
    assert not lost
    assert len(known) > 1000


def test_groups_have_a_meaning() -> None:
    """A group that no reader knows is used by the text of its row alone."""
    for row in ROWS:
        names = {name.rstrip("0123456789") for name in re.compile(row.pattern).groupindex}
        used = row.detail + row.operation
        unknown = {name for name in names - set(GROUPS) if f"{{{name}}}" not in used}
        assert unknown <= {"mds", "s", "ms", "how", "name", "container", "inside", "nic", "port", "call"}, row.pattern


NUMBERS = ("rank", "peer", "local", "pid", "code")


def test_groups_of_numbers_capture_numbers() -> None:
    """A host that is captured as a peer's rank would cost the whole line."""
    for row in ROWS:
        for pattern in filter(None, (row.pattern, row.below)):
            groups = re.findall(rf"\(\?P<(?:{'|'.join(NUMBERS)})\d*>(.*?)\)", pattern)
            assert all(re.match(r"-?\??(?:\\d|\d|\[1-9\]|\(\?:\d)", group) for group in groups), pattern


def test_a_server_that_answers_again_takes_its_failure_back() -> None:
    """An NFS server that was silent for a moment has not failed."""
    lost = "[ 3223.539141] nfs: server nas-1 not responding, still trying\n"
    assert kinds(lost) == {"storage_lost"}
    assert not kinds(lost + "[ 3224.612015] nfs: server nas-1 OK\n")
    assert kinds(lost + "[ 3224.612015] nfs: server nas-2 OK\n") == {"storage_lost"}
