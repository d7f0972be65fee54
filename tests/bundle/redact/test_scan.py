"""Where redaction looks: the C scanner and Python name the same places; and logs full of secrets keep none, in time."""

from __future__ import annotations

import io
import json
import random
import shutil
import subprocess
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_bundle import log_kinds
from hangscope.bundle.redact import assignments, needle_handlers, scan
from hangscope.bundle.redact.redact_file import Redactor
from kits.secrets.kinds import LETTERS
from kits.secrets.plant import plants

LINES = 4000
ALNUM = LETTERS["a"]
HEX = LETTERS["x"]
WORDS = (*assignments.NEEDLES, b"@", b"://", b"akia", b"/home/", b"q~", b"pas", b"passw")

needs_c = pytest.mark.skipif(not scan.built(), reason="the C scanner was not built here")
"""What it is compared with is the only scanner there then."""
_PIECES = st.sampled_from(
    [*WORDS, b"\n", b"\n", b"\r\n", b" ", b"=", b"/", b"-", b"_", b"+", b".", b"%41", b"%2", b"&quot;", b"&a", b"^[",
     b"\x1b[0m", b"\\n", b"\\", b"h\0e\0", b"0", b"a1", b"Zq", b"0123456789abcdef", b"deadbeef" * 4 + b"-us12", b"\xff",
     b"abcdefghijklmnopqrstuvwxyz", b"A1B2C3D4E5F6G7H8I9J0K", b"aGVsbG8gd29ybGQK==", b"layers.12.attention.wq"]
)  # fmt: skip
texts = st.lists(_PIECES | st.binary(max_size=6), max_size=40).map(b"".join)


def _by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(scan.VARIABLE, "python")


@pytest.mark.native
@needs_c
@given(texts)
@settings(max_examples=600, deadline=None)
def test_both_scanners_name_the_same_words_and_escapes(data: bytes) -> None:
    """Whatever the bytes, C and Python find the same words at the same places, and every escape that Python sees."""
    with pytest.MonkeyPatch.context() as patch:
        c = scan.Words(WORDS, in_c=True).places(data)
        lines = list(scan.escaped(data))
        _by_python(patch)
        assert list(c) == list(scan.Words(WORDS, in_c=False).places(data))
        for begin, end in scan.escaped(data):
            assert any(first <= begin and end <= last for first, last in lines)


def _passed_over(data: bytes) -> list[bytes]:
    """Long words that Python looks at and C does not."""
    with pytest.MonkeyPatch.context() as patch:
        c = set(scan.long_words(data))
        _by_python(patch)
        assert c <= set(scan.long_words(data))
        return [data[begin:end] for begin, end in scan.long_words(data) if (begin, end) not in c]


@pytest.mark.native
@needs_c
@given(texts)
@settings(max_examples=600, deadline=None)
def test_no_long_word_that_c_passes_over_is_a_secret(data: bytes) -> None:
    """A word that the scanner leaves out is one that the judge of words would keep."""
    assert [word for word in _passed_over(data) if needle_handlers.judged(word)] == []


@pytest.mark.native
@needs_c
def test_no_generated_secret_is_passed_over() -> None:
    """The same for every generated secret, in the words in which it is written."""
    data = "\n".join(one.text for one in plants(91)).encode("utf-8", "surrogateescape")
    passed = _passed_over(data)
    assert len(passed) > 100
    assert [word for word in passed if needle_handlers.judged(word)] == []


@pytest.mark.parametrize("seed", [1, 2])
def test_without_the_c_scanner_the_same_is_replaced(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Where it was not built, bundles are slower, and not a byte different."""
    some = [one.text for one in plants(seed, 1, 1)]
    random.Random(seed).shuffle(some)
    data = "\n".join(some[:300]).encode("utf-8", "surrogateescape")
    clean = _redacted(data)
    _by_python(monkeypatch)
    assert _redacted(data) == clean


@pytest.mark.native
def test_the_scanner_reads_no_byte_that_is_not_there(tmp_path: Path) -> None:
    """Under the address and undefined-behaviour sanitizers, over random bytes and texts of every length."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    here = Path(__file__).parents[2]
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    empty = tmp_path / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    probe = [compiler, *sanitizers, empty, "-o", tmp_path / "empty"]
    if compiler is None or subprocess.run(list(map(str, probe)), capture_output=True, check=False).returncode:
        pytest.skip("there is no C compiler with sanitizers here")
    warnings = ("-std=gnu11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-g", "-O1")
    native = here.parent / "native"
    sources = (native / "scan.c", here / "native" / "scan_files.c")
    command = [compiler, *warnings, *sanitizers, f"-I{native}", *sources, "-o", tmp_path / "scan_files"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    noise = random.Random(8)
    letters = b"abcAZ019+/_=~.-%&^\\\x1b\n\0 key@://token"
    files = []
    for number in range(120):
        files.append(tmp_path / str(number))
        files[-1].write_bytes(bytes(noise.choices(letters, k=noise.randrange(3000))) + noise.randbytes(number))
    done = subprocess.run([tmp_path / "scan_files", *files], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 10_000


@needs_c
def test_a_tree_of_words_that_leads_nowhere_is_refused() -> None:
    """The scanner takes no table in which a step would leave it."""
    from hangscope.bundle.redact import _scan

    for classes, steps, ends in (
        (bytes(255), bytes(4), bytes(2)),
        (bytes([9]) * 256, bytes(4), bytes(2)),
        (bytes(256), b"\xff\xff", bytes(2)),
        (bytes(256), b"", b""),
    ):
        with pytest.raises(ValueError, match="no tree of words"):
            _scan.tree(classes, steps, ends)


def _word(noise: random.Random, size: int, letters: str = ALNUM) -> str:
    return "".join(noise.choice(letters) for _ in range(size))


def _json(noise: random.Random) -> tuple[bytes, list[str]]:
    secrets = [(_word(noise, 16), "ghp_" + _word(noise, 36)) for _ in range(LINES)]
    rows = [{"id": n, "password": one, "token": other, "m": "ok"} for n, (one, other) in enumerate(secrets)]
    return json.dumps(rows).encode(), [word for pair in secrets for word in pair]


def _log(noise: random.Random) -> tuple[bytes, list[str]]:
    secrets = [_word(noise, 32) for _ in range(LINES)]
    rows = [f"2026-11-15 10:00:{n % 60:02d} step {n} api_key={one} loss 0.{n}\n" for n, one in enumerate(secrets)]
    return "".join(rows).encode(), secrets


def _escaped(noise: random.Random) -> tuple[bytes, list[str]]:
    secrets = [_word(noise, 40, HEX) for _ in range(LINES)]
    rows = [f'export WANDB_API_KEY="{one}" # {n}' for n, one in enumerate(secrets)]
    return json.dumps({"log": "\n".join(rows)}).encode(), secrets


def _at_the_end(noise: random.Random) -> tuple[bytes, list[str]]:
    secrets = [f"{_word(noise, 20)}/{_word(noise, 9)}+{_word(noise, 8)}7" for _ in range(LINES)]  # else perhaps a name
    return "".join(f"DEBUG sts {one}\n" for one in secrets).encode(), secrets


def _column(noise: random.Random) -> tuple[bytes, list[str]]:
    secrets = ["ghp_" + _word(noise, 36) for _ in range(LINES)]
    return "".join(f"[rank3]: {one}\n" for one in secrets).encode(), secrets


DENSE = {"column": _column, "json": _json, "log": _log, "escaped": _escaped, "at the end": _at_the_end}


def _redacted(data: bytes) -> bytes:
    out = io.BytesIO()
    Redactor().file(io.BytesIO(data), out, "x.log")
    return out.getvalue()


@pytest.mark.parametrize("name", DENSE)
def test_a_log_of_nothing_but_secrets_keeps_none_and_takes_little_longer(name: str) -> None:
    """Each of thousands of secrets goes, within a small multiple of the time that packing the log takes."""
    data, secrets = DENSE[name](random.Random(name))
    clean = _redacted(data)
    assert [one for one in secrets if one.encode() in clean] == []
    ratios = []
    for _ in range(3):  # the machine is shared: the best of three
        begun = time.process_time()
        zlib.compress(data, 6)
        packed = time.process_time()
        _redacted(data)
        ratios.append((time.process_time() - packed) / (packed - begun))
    assert min(ratios) < 40  # measured 5 to 22; without care for columns of them 2,000


ORDINARY = (
    "pods", "keys of a checkpoint", "ids", "Ray, coloured", "containers, in JSON", "training", "NCCL INFO", "key=value",
    "running text", "hexadecimal", "addresses", "YAML, a key in ten lines", "progress bar", "one line of words",
    "one line of base64",
)  # fmt: skip


@needs_c
def test_logs_as_jobs_write_them_take_at_most_five_times_as_long_as_packing_them() -> None:
    """Of every kind of log that jobs write: within five times the CPU time that `gzip -6` takes."""
    slow = {}
    for kind, data in log_kinds(400_000):
        ratios = []
        for _ in range(3 if kind in ORDINARY else 0):  # the machine is shared: the best of three
            begun = time.process_time()
            zlib.compress(data, 6)
            packed = time.process_time()
            _redacted(data)
            ratios.append((time.process_time() - packed) / (packed - begun))
        if ratios and min(ratios) > 5:
            slow[kind] = ratios
    assert slow == {}


def test_what_was_innocent_once_excuses_no_other() -> None:
    """A word that is no secret, at a place and of a length at which secrets follow, does not let them through."""
    noise = random.Random(4)
    secrets = [_word(noise, 26) for _ in range(50)]
    rows = [f"state DistributedDataParallel2x7 at {n}\n" for n in range(50)]
    rows += [f"state {one} at {n}\n" for n, one in enumerate(secrets)]
    clean = _redacted("".join(rows).encode())
    assert clean.count(b"DistributedDataParallel2x7") == 50
    assert [one for one in secrets if one.encode() in clean] == []
