"""JSON of strangers: what is none is known by its beginning, and what would take too much memory is not parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hangscope.safeio import bounded_json
from hangscope.safeio.bounded_json import TooMuch, loads, may_be_json

VALUES: tuple[Any, ...] = (
    {},
    [],
    [1, -2.5e-3, True, False, None, float("nan"), float("-inf")],
    {
        "schema": "hangscope.node/1",
        "ranks": [{"rank": 3, "text": 'a "quoted" \\ \u2028 \u00e9\U0001f600 line\n'}] * 9,
    },
    [[[[[["deep"]]]]], {"a": {"b": {"c": []}}}],
    ["x" * 40_000],
    {"k" * 30_000: 1},
    [123456789012345678901234567890],
)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
@pytest.mark.parametrize("options", [{}, {"indent": 1}, {"ensure_ascii": False}, {"separators": (",", ":")}])
def test_json_is_never_taken_for_a_log(value: Any, options: dict[str, Any]) -> None:
    """Wherever the look at it ends, in a word, a string, an escape or a number, a JSON file may be JSON."""
    raw = b" \n" + json.dumps(value, **options).encode() + b"\n"
    step = max(1, len(raw) // 500)
    assert all(may_be_json(raw[:end]) for end in (*range(1, len(raw), step), len(raw)))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32"])
def test_json_in_wide_letters_may_be_json(encoding: str) -> None:
    """What Python's parser would understand is left to it."""
    assert may_be_json('{"a": 1}'.encode(encoding))


LOGS = (
    b"[2026-11-15T01:26:24.885] gpu-worker-6:2367:2367 [0] NCCL INFO x\n",
    b"[2026-11-15 02:30:11,204] [INFO] [torch] step 1\n",
    b"[rank0]: Traceback (most recent call last):\n",
    b"[0] NCCL INFO x, and so on and on\n",
    b"[1,0]<stdout>: loss 3.2 and so on and on\n",
    b"{'loss': 3.2, 'step': 1, 'learning_rate': 1}\n",
    b'{"message": "one"}\n{"message": "two"}\n',
    b"[E1115 01:24:15.9 ProcessGroupNCCL.cpp:1700] x\n",
    b"[INFO|trainer.py:100] 2026-01-01 >> x\n",
)


@pytest.mark.parametrize("line", LOGS)
@pytest.mark.parametrize("lines", [1, 5000])
def test_logs_that_begin_like_json_are_known(line: bytes, lines: int) -> None:
    """Times, ranks, MPI's tags and one JSON object a line: the first line is enough."""
    assert not may_be_json(line * lines)


def test_nonsense_costs_nothing() -> None:
    """Brackets without end, endless numbers and broken letters are left to whoever parses the whole."""
    for raw in (b"[" * 70_000, b"[" + b"1" * 70_000, b'["\xff\xfe', b"{", b"[", b""):
        may_be_json(raw)
    assert may_be_json(b"[" * 70_000)


@pytest.mark.parametrize("raw", [b"[" + b"[]," * 3_000_000 + b"0]", b"[" + b"1" * 5000 + b"]", b"[" * 100_000])
def test_what_would_take_too_much_is_not_parsed(raw: bytes) -> None:
    """Memory, endless numbers and nesting are refused in words."""
    with pytest.raises(TooMuch):
        loads(raw)


def test_the_weight_is_no_less_than_what_parsing_takes() -> None:
    """A dictionary, a list and a string are each estimated at no less than their size in memory."""
    assert bounded_json.weight(b'[{"a": "b"}]') >= 64 + 184 + 50 + 50
