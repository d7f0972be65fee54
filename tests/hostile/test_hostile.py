"""Hostile evidence: no code runs, nothing hangs, memory stays bounded, and only our own errors come out.

The full size is a command: ``python tests/hostile/run.py --count 3000``.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from hangscope.cli.main import VERBS
from hangscope.errors import DamagedError, HangscopeError
from hangscope.model.values import line_of
from hangscope.reader.dumps import dump_file
from hangscope.reader.load import load
from hangscope.reader.logs import log_lines
from hangscope.reader.logs.log_file import TextFile
from hangscope.reader.logs.unwrap import unwrapped
from hangscope.safeio import bounded_json
from hangscope.safeio.walk import survey
from hostile.inputs import CLASSES, files
from kits import crowds

RUN = [sys.executable, str(Path(__file__).with_name("run.py"))]


def test_two_thousand_hostile_files() -> None:
    """Mutated, cut and crafted files are read or refused, each within two seconds and all within 500 MB."""
    done = subprocess.run(
        [*RUN, "--only", "files", "--count", "2000", "--seed", "20261115"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert f"2000 files of {len(files.KINDS)} kinds, 0 problems" in done.stdout
    outcomes = _counts(done.stdout, "refused ")
    assert outcomes["refused"] > 100
    assert outcomes["broken"] > 100


QUICK = (
    "dump_files", "log_words", "our_json_nonsense", "json_that_grows", "tree_clashes", "tree_crowds", "bundle_bits",
    "options", "broken_torch", "lying_node",
)  # fmt: skip
"""Classes that between them are asked every verb, and cost little."""
ATTACKED_ELSEWHERE = {"serve", "push", "node", "node-check", "mcp", "probe", "attach", "agent"}
"""Verbs that talk to another program: tests/server, tests/assistant and tests/recorder/probe lie to them. Processes
that `attach` and `agent` watch lie in tests/sources/test_hostile_processes.py."""


@pytest.mark.parametrize(("names", "each"), [(tuple(CLASSES), 1), (QUICK, 8)], ids=["every class", "every verb"])
def test_hostile_evidence_costs_nobody_anything(names: tuple[str, ...], each: int) -> None:
    """No traceback, nothing over 5 s or 500 MB, nothing written outside, no code run, no raw character on a terminal,
    no process left, every product sound and every skipped thing named."""
    count = each * len(names)
    only = [word for name in names for word in ("--only", name)]
    done = subprocess.run([*RUN, "--count", str(count), "--seed", "2", *only], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert f"{count} inputs of {len(names)} classes, 0 problems" in done.stdout
    if names == QUICK:
        # "node": one that answers `collect` with nonsense
        assert set(_counts(done.stdout, "asked: ")) == {*VERBS} - ATTACKED_ELSEWHERE | {"node"}


def _counts(said: str, part: str) -> Counter[str]:
    """The line that holds this, such as "refused 5, read 7"."""
    line = next(line for line in said.splitlines() if part in line)
    return Counter({name: int(times) for name, times in re.findall(r"(\w+) (\d+)", line)})


def test_the_hostile_files_are_the_same_everywhere() -> None:
    """A failure can be repeated from its seed and number alone."""
    assert [files.make(5, number) for number in range(40)] == [files.make(5, number) for number in range(40)]


def test_the_watch_sees_code_run() -> None:
    """The harness itself notices an unpickler that runs what a file says: a check of the check."""
    payload = b"\x80\x02" + files.PAYLOADS[0].replace(b"touch", b"true ") + b"."
    program = (
        "import sys, pickle; sys.path.insert(0, sys.argv[1]); from hostile.asking import Watch\n"
        "watch = Watch(); watch.active = True\n"
        f"pickle.loads({payload!r}); watch.active = False; print(watch.seen)"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "pickle.find_class" in done.stdout
    assert "os.system" in done.stdout


def test_the_watch_sees_what_is_written_outside(tmp_path: Path) -> None:
    """A verb that writes beside its folder is noticed, one that writes inside is not: another check of the check."""
    program = (
        "import sys, os; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from hostile.asking import Watch\n"
        "watch = Watch(Path(sys.argv[2], 'in')); watch.active = True\n"
        "Path(sys.argv[2], 'in', 'a').write_text('x'); Path(sys.argv[2], 'b').write_text('x')\n"
        "os.mkdir(sys.argv[2] + '/c')\n"
        "watch.active = False; print(watch.seen)"
    )
    (tmp_path / "in").mkdir()
    command = [sys.executable, "-c", program, str(Path(__file__).parents[1]), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{[f'wrote {tmp_path}/b', f'wrote {tmp_path}/c']}\n"


@pytest.mark.parametrize("field", ["input_sizes", "frames", "process_group", "thread_name", "profiling_name"])
def test_shared_lists_do_not_multiply(field: str) -> None:
    """A list of sixty thousand, sixty thousand times in the next, in nine hundred entries, costs next to nothing."""
    build = b"]q\x00(" + b"K\x01" * 60_000 + b"e"
    build = b"]q\x01(" + build + b"h\x00" * 60_000 + b"e"
    body = files.entry_with(field, build) + files.entry_with(field, b"h\x01") * 900
    data = files._ENTRIES + body + b"eu."
    started = time.process_time()
    try:
        dump_file.read(data, file="x")
    except DamagedError as error:
        assert "shared" in str(error)
    assert time.process_time() - started < 2


def test_reading_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    """Nothing is ever written beside the input, whatever the input is."""
    for number in range(60):
        kind, data = files.make(77, number)
        (tmp_path / f"{kind}_rank_{number}").write_bytes(data)
    outside = tmp_path.parent / "outside_rank_9"
    outside.write_bytes(gzip.compress(b"secret"))
    os.symlink(outside, tmp_path / "nccl_trace_rank_9")
    before = {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")}
    try:
        load(tmp_path)
    except HangscopeError:
        pass
    assert {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")} == before


def test_a_tree_of_many_files_is_bounded(tmp_path: Path) -> None:
    """Twenty thousand files are listed within seconds."""
    for folder in range(100):
        (tmp_path / f"d{folder}").mkdir()
        for number in range(200):
            os.mknod(tmp_path / f"d{folder}" / f"x{number}.json")
    started = time.process_time()
    assert len(survey(tmp_path).files) == 20_000
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.json", "[" + "[]," * (6 << 20) + "0]"),
        ("incident.json", '{"schema": "hangscope.incident/1", "x": [' + "{}," * (6 << 20) + "0]}"),
        ("node.json", '{"schema": "hangscope.node/1", "ranks": [' + '{"rank": 1},' * (2 << 20) + "{}]}"),
        ("nccl_trace_rank_0.json", '{"pg_config": {}, "entries": [' + "{}," * (6 << 20) + "{}]}"),
        ("ras.json", '{"nccl_version": "2.28.9", "communicators": [' + '{"hash": "1"},' * (1 << 20) + "{}]}"),
    ],
    ids=["x", "incident", "node", "dump", "ras"],
)
@pytest.mark.parametrize("verb", ["diagnose", "bundle"])
def test_json_that_grows_in_memory_is_not_parsed(verb: str, name: str, text: str, tmp_path: Path) -> None:
    """Twenty megabytes of brackets would take a gigabyte and a minute: the file is named, and costs its reading."""
    place = tmp_path / "in"
    place.mkdir()
    (place / name).write_text(text)
    (place / "rank_0.log").write_text("RuntimeError: x\n")
    out = [] if verb == "diagnose" else ["-o", str(tmp_path / "b.tar.gz")]
    spent, megabytes, said = crowds.ask([verb, str(place), *out])
    assert spent < crowds.SECONDS and megabytes < crowds.MEGABYTES
    assert "Traceback" not in said


def test_what_json_takes_is_seen_before() -> None:
    """The estimate of memory is never under what Python takes, for each kind of value."""
    for piece in ("[]", "{}", '""', "1234567", "1.5", '{"a": 1}', '"abcdefgh"', "null", "[[1]]"):
        raw = ("[" + ",".join([piece] * 50_000) + "]").encode()
        tracemalloc.start()
        value = bounded_json.loads(raw)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(value) == 50_000 and taken <= bounded_json.weight(raw), piece
    with pytest.raises(bounded_json.TooMuch, match="would take"):
        bounded_json.loads(b"[" + b"[]," * 3_000_000 + b"0]")
    with pytest.raises(bounded_json.TooMuch, match="digits"):
        bounded_json.loads(b"9" * 5000)
    with pytest.raises(bounded_json.TooMuch, match="deep"):
        bounded_json.loads(b"[" * 100_000)


@pytest.mark.parametrize(
    "line",
    [
        "kernel: NVRM: Xid ( PCI: ): " + "PCI:" * 1_900,
        "oom-kill:" * 880,
        "NVRM: GPU " + "é" * 4_000 + "fallen off the bus",
        "process rank " + "\t" * 7_900 + " exited on signal ",
        "# hangscope stacks " + "A" * 7_900,
        "Error: " + "gloo" * 1_900 + "connectFullMesh failed",
        "n1:1:1 [0] NCCL WARN NET/" * 300,
        "n1:1:1 [0] NCCL WARN ibv_create_" + "alloc_" * 1_200 + " failed",
    ],
)
def test_no_line_is_looked_at_from_each_of_its_letters(line: str) -> None:
    """Sixty lines as long as any that is read, made for searches that begin anew at each letter, take a second."""
    data = (line.encode()[: log_lines.LINE_LIMIT - 8] + b"\n") * 60
    before = time.process_time()
    TextFile("dmesg.txt").read(io.BytesIO(data), len(data))
    assert time.process_time() - before < 1.5


@pytest.mark.parametrize(
    "data", [b"\n" * 2_000_000, b"OK\n" * 600_000, b"\n \t" * 600_000], ids=["ends", "OK", "blanks"]
)
def test_a_file_of_line_ends_takes_no_time(data: bytes, tmp_path: Path) -> None:
    """Two megabytes of nothing but line ends, which look as an answer of RAS may begin, are read within seconds."""
    (tmp_path / "rank_0.log").write_bytes(data)
    spent, _, said = crowds.ask(["diagnose", str(tmp_path)])
    assert spent < crowds.SECONDS and "Traceback" not in said


def test_a_failure_that_repeats_is_read_often_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an error that is printed without end the first lines are read, what comes between them is found, how many were
    not read is said, and every rank's last line stays a sign of its life."""
    monkeypatch.setattr(log_lines.LineShapes, "MOST_ALIKE", 1_000)
    spam = [f"[rank{n % 4}]: [E1115 02:30:11.{n:09d} x.cpp:1] RuntimeError: bad value {n}" for n in range(60_000)]
    spam[30_000] = "[rank5]: RuntimeError: the one that matters"
    spam[40_000:] = [line.replace("[rank3]", "[rank1]") for line in spam[40_000:]]
    (tmp_path / "train.log").write_text("\n".join(spam) + "\n")
    job = load(tmp_path)
    assert any("the one that matters" in failure.text for failure in job.facts.failures)
    (gap,) = [gap for gap in job.gaps if "lines of" in gap.what]
    assert int(gap.what.split()[0]) > 50_000 and "train.log" in gap.what
    at = {rank: line_of(source) for rank, source in job.facts.signs_of_life.items()}
    assert at[3] == 40_000 and min(at[0], at[1], at[2]) > 59_900


def test_a_hundred_megabytes_of_one_error_take_seconds(tmp_path: Path) -> None:
    """A small archive that unpacks to four million lines of failure is read within the bounds of any file."""
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(b"[rank0]: RuntimeError: x\n" * 4_000_000, 6))
    spent, megabytes, said = crowds.ask(["diagnose", str(tmp_path)])
    assert spent < 1.5 * crowds.SECONDS and megabytes < crowds.MEGABYTES and "Traceback" not in said


@pytest.mark.parametrize(
    ("name", "magic"),
    [("a.tar.xz", b"\xfd7zXZ\0"), ("b.zst", b"\x28\xb5\x2f\xfd"), ("c.bz2", b"BZh9"), ("d.7z", b"7z\xbc\xaf\x27\x1c")],
)
def test_what_is_packed_otherwise_is_named(name: str, magic: bytes, tmp_path: Path) -> None:
    """Evidence that is packed as nobody here opens it is missing, and that is said, with the cure."""
    (tmp_path / "rank_0.log").write_text("[rank0]: RuntimeError: x\n")
    (tmp_path / name).write_bytes(magic + bytes(range(256)) * 9)
    (gap,) = [gap for gap in load(tmp_path).gaps if name in gap.what]
    assert "unpack it" in gap.why


@pytest.mark.parametrize("number", ["9999999999999999999", "18446744073709551616", "9" * 300])
def test_no_number_of_a_log_is_beyond_all_bounds(number: str) -> None:
    """A number that no machine holds is not believed, also in a line with letters of several bytes."""
    data = f"[rank0]: RuntimeError {'é' * 400} rank {number} at 1794705885954691109\n".encode()
    ((_, text, _),) = unwrapped(log_lines.raw_lines(io.BytesIO(data)))
    assert text.endswith(" rank -1 at 1794705885954691109")
