"""Redaction by its parts: the plain view leads back, names are no keys, and neither time nor memory grow."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangscope.bundle.redact.plain_view import View
from hangscope.bundle.redact.random_words import is_random
from hangscope.bundle.redact.redact_file import Redactor

SEED = 20261115


def clean(text: str) -> str:
    return Redactor().text(text.encode()).decode()


def test_random_words_and_names_are_known_apart() -> None:
    """Of random keys of 24 letters and more at most one in a hundred passes as a name; of real names none is a key."""
    noise = random.Random(SEED)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    for size in (24, 32, 40, 64):
        keys = ["".join(noise.choice(letters) for _ in range(size)).encode() for _ in range(1000)]
        assert sum(not is_random(key) for key in keys) <= 10
    import hangscope.diagnosis
    import hangscope.reader

    source = Path(hangscope.reader.__file__).parent
    words = {word for path in source.rglob("*.py") for word in path.read_bytes().split() if len(word) >= 20}
    assert len(words) > 500
    assert clean("\n".join(word.decode("utf-8", "replace") for word in sorted(words))).count("random-string") == 0


def test_the_view_knows_its_way_back() -> None:
    """Whatever is decoded, a place in the plain view leads to the bytes that it was made of."""
    raw = b'a\\n"b\\u0022 %22c%3D \x1b[31mred\x1b[0m &quot;d&quot; \\x41 x\\\n  y'
    view = View(raw)
    assert view.text == b'a\n"b" "c= red "d" A xy'
    for word, lies in ((b"red", b"red"), (b'"b"', b'"b\\u0022'), (b'"c=', b"%22c%3D"), (b"A", b"\\x41")):
        at = view.text.index(word)
        start, end = view.back(at, at + len(word))
        assert raw[start:end] == lies


def _ordinary_log(size: int) -> bytes:
    """A training log as jobs write them: steps, NCCL's lines, JSON metrics, checksums, a user's paths."""
    noise = random.Random(5)
    lines: list[str] = []
    length = 0
    while length < size:
        pick, n = noise.random(), noise.randrange(10**6)
        stamp = f"2026-11-15 10:{n % 60:02d}:{n % 59:02d},{n % 1000:03d}"
        if pick < 0.5:
            line = f"[{stamp}][INFO][rank{n % 64}] step {n} loss {noise.uniform(1, 9):.4f} lr 3.00e-04 tokens/s {n * 7}"
        elif pick < 0.8:
            line = f"gpu-a{n % 999:03d}:{n % 99999}:{n % 9999} [{n % 8}] NCCL INFO Channel {n % 32:02d}/0 : {n % 64}"
            line += (
                f"[{n % 8}] -> {n % 63}[{n % 8}] [send] via NET/IB/{n % 8}/GDRDMA comm 0x{noise.getrandbits(48):012x}"
            )
        elif pick < 0.9:
            line = (
                f'{{"ts": "{stamp}", "loss": {n / 7:.5f}, "run": "{noise.getrandbits(32):08x}", "key": "train/loss"}}'
            )
        elif pick < 0.95:
            line = f"opened /mnt/data/shards/train-{n:06d}.tar (sha256 {noise.getrandbits(256):064x})"
        else:
            line = f'  File "/home/alice/src/loop.py", line {n % 999}, in train_step'
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines).encode()


def test_redaction_takes_at_most_five_times_as_long_as_gzip(tmp_path: Path) -> None:
    """An ordinary log is redacted within five times the time of `gzip -6` on it, both measured side by side."""
    log = tmp_path / "train.log"
    log.write_bytes(_ordinary_log(12 << 20))
    ratios = []
    for _ in range(3):
        begun = time.perf_counter()
        subprocess.run(["gzip", "-6", "-c", str(log)], stdout=subprocess.DEVNULL, check=True)
        packed = time.perf_counter() - begun
        begun = time.perf_counter()
        with log.open("rb") as source, (tmp_path / "out").open("wb") as out:
            Redactor([b"alice"]).file(source, out)
        ratios.append((time.perf_counter() - begun) / packed)
    assert min(ratios) < 5, ratios


@pytest.mark.parametrize("form", ["lines", "one line of JSON", "one endless word"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, form: str) -> None:
    """Redacting 48 MB takes hardly more memory than redacting 6 MB, also where all of it is one line or one word."""
    script = (
        "import sys\n"
        "from hangscope.bundle.redact.redact_file import Redactor\n"
        "with open(sys.argv[1], 'rb') as source, open('/dev/null', 'wb') as out: Redactor().file(source, out)\n"
        # not getrusage: a process that was just started still counts the memory of the one that started it
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    unit = {
        "lines": b"step 17 loss 0.25 of some training run\n",
        "one line of JSON": b'{"step": 17, "loss": 0.25, "name": "layer.3.weight"}, ',
        "one endless word": b"step17",
    }[form]
    peaks = []
    for size in (6 << 20, 48 << 20):
        (tmp_path / "x").write_bytes(unit * (size // len(unit)))
        done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "x")], capture_output=True, check=True)
        peaks.append(int(done.stdout) / 1024)
    assert peaks[1] < peaks[0] + 24, peaks
    assert peaks[1] < 200
