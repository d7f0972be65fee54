"""Thousands of hostile files: no code runs, nothing hangs, memory stays bounded, and only our own errors come out.

The full size is a command: ``python tests/fuzz_reader.py --count 20000``.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

import crowds
import fuzz_reader
import hostile
from hangscope.cli.main import VERBS
from hangscope.errors import DamagedError
from hangscope.incident import jsons
from hangscope.reader import dumps


def test_two_thousand_hostile_files() -> None:
    """Mutated, cut and crafted files are read or refused, each within two seconds and all within 500 MB."""
    result = fuzz_reader.run(seed=20261115, first=0, count=2000)
    assert result["failures"] == []
    assert result["files"] == 2000
    assert result["megabytes"] <= fuzz_reader.MEGABYTES
    assert set(result["kinds"]) == {kind.__name__ for _, kind in hostile.KINDS}
    assert result["outcomes"]["refused"] > 100
    assert result["outcomes"]["broken"] > 100


def test_the_hostile_files_are_the_same_everywhere() -> None:
    """A failure can be repeated from its seed and number alone."""
    assert [hostile.make(5, number) for number in range(40)] == [hostile.make(5, number) for number in range(40)]


def test_the_watch_sees_code_run() -> None:
    """The harness itself notices an unpickler that runs what a file says: a check of the check."""
    payload = b"\x80\x02" + hostile.PAYLOADS[0].replace(b"touch", b"true ") + b"."
    program = (
        "import sys, pickle; sys.path.insert(0, sys.argv[1]); import fuzz_reader\n"
        "watch = fuzz_reader._Watch(); watch.active = True\n"
        f"pickle.loads({payload!r}); print(watch.events)"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "pickle.find_class" in done.stdout
    assert "os.system" in done.stdout


@pytest.mark.parametrize("field", ["input_sizes", "frames", "process_group", "thread_name", "profiling_name"])
def test_shared_lists_do_not_multiply(field: str) -> None:
    """A list of sixty thousand, sixty thousand times in the next, in nine hundred entries, costs next to nothing."""
    build = b"]q\x00(" + b"K\x01" * 60_000 + b"e"
    build = b"]q\x01(" + build + b"h\x00" * 60_000 + b"e"
    body = hostile.entry_with(field, build) + hostile.entry_with(field, b"h\x01") * 900
    data = hostile._ENTRIES + body + b"eu."
    started = time.process_time()
    try:
        dumps.read(data, file="x")
    except DamagedError as error:
        assert "shared" in str(error)
    assert time.process_time() - started < 2


def test_reading_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    """Nothing is ever written beside the input, whatever the input is."""
    from hangscope.errors import HangscopeError
    from hangscope.reader.load import load

    for number in range(60):
        kind, data = hostile.make(77, number)
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


def test_hostile_inputs_over_every_verb() -> None:
    """A sample of ``python tests/hostile_verbs.py`` that reaches every verb: no traceback, nothing over 5 s or 500 MB,
    nothing written outside, no escape on a terminal, and every skipped thing named."""
    program = [sys.executable, str(Path(__file__).with_name("hostile_verbs.py")), "--count", "80", "--batch", "80"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "80 inputs" in done.stdout
    reached = {word.split()[0] for word in done.stdout.splitlines()[-1].split(", ")}
    assert reached == {*VERBS, "node"}  # a node that answers `collect` with nonsense


def test_a_tree_of_many_files_is_bounded(tmp_path: Path) -> None:
    """Twenty thousand files are listed within seconds."""
    from hangscope.incident.layout import survey

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
        value = jsons.loads(raw)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(value) == 50_000 and taken <= jsons.weight(raw), piece
    with pytest.raises(jsons.TooMuch, match="would take"):
        jsons.loads(b"[" + b"[]," * 3_000_000 + b"0]")
    with pytest.raises(jsons.TooMuch, match="digits"):
        jsons.loads(b"9" * 5000)
    with pytest.raises(jsons.TooMuch, match="deep"):
        jsons.loads(b"[" * 100_000)
