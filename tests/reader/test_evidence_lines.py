"""What a bundle carries of a file: the lines that a reader knows, and of those around them what may be seen."""

from __future__ import annotations

import io
import json

import pytest

from hangscope.reader.evidence_lines import AFTER, BEFORE, keep_evidence, lines_of_evidence
from hangscope.reader.log_context import emptied, shown

NCCL = "gpu-a017:81233:81301 [6] NCCL INFO Channel 00/0 : 3[3] -> 12[4] [send] via NET/IB/0/GDRDMA"


def kept(text: str, name: str = "job.log", cited: tuple[int, ...] = ()) -> tuple[list[str], int | None]:
    """The lines that are written, and how many of the log's are left out."""
    out = io.BytesIO()
    left = keep_evidence(io.BytesIO(text.encode()), out, cited, name)
    return out.getvalue().decode().split("\n")[:-1], left


def test_lines_that_are_no_evidence_stay_behind() -> None:
    """What no reader knows leaves a mark with its time and rank; what is evidence stays byte for byte, in its place."""
    log = [
        *[f"[rank3]: 2026-11-15 10:00:0{n} our customer {n}" for n in range(9)],
        NCCL,
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 3, in step',
        "    loss.backward()",
        "RuntimeError: boom",
        *["and something private again"] * 9,
    ]
    lines, left = kept("\n".join(log) + "\n")
    assert len(lines) == len(log)
    assert lines[9:14] == log[9:14]
    assert lines[0] == "[rank3]: 2026-11-15 10:00:00 …"
    assert {line[-1:] for line in (*lines[:9], *lines[14:])} == {"…"}
    assert left == 18


def test_around_evidence_the_words_of_training_loops_are_shown() -> None:
    """Five lines before evidence, two behind it, the first of a log that shows a step, and its last five show steps,
    numbers and no other word."""
    private = "step {} loss 2.{} saved to /fsx/alice for acme"
    log = [private.format(n, n) for n in range(20)]
    log.insert(10, NCCL)
    lines, left = kept("\n".join(log))
    seen = [number for number, line in enumerate(lines) if line.startswith("step")]
    assert seen == [0, *range(10 - BEFORE, 10), *range(11, 11 + AFTER), *range(len(log) - BEFORE, len(log))]
    assert lines[9] == "step 9 loss 2.9 saved to … for …"
    assert left == 20 - len(seen)


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("[2026-11-15 10:00:01,123] step 400/1000 loss=2.31 lr 3.00e-04 tokens/s 182734", None),
        ("epoch: 3 | grad_norm: 1.2 | mem 71.2GiB", None),
        ("[rank3]: password is hunter2", "[rank3]: …"),
        ("pin 1234 code 99", "…"),
        ("step 3 token 48121733", "step 3 …"),
        ("saving checkpoint to s3://acme/secret in 12.3s", "saving checkpoint to … in 12.3s"),
        ("  3%|x | 3/100\rstep 4 loss 2.5", "step 4 loss 2.5"),
        ("2026-11-15T00:00:01.123Z stderr F export KEY=x", "2026-11-15T00:00:01.123Z stderr F …"),
        ("[I 10:00] by agnieszka 2026-11-15 10:00:02 [rank7]: x", "2026-11-15 10:00:02 [rank7]: …"),
        ("", ""),
    ],
)
def test_of_a_line_without_evidence_known_words_and_their_numbers_are_seen(line: str, seen: str | None) -> None:
    """Times, ranks, words of a list and the numbers right behind them stay; names, paths and other numbers do not."""
    assert shown(line.encode()).decode() == (line if seen is None else seen)
    assert emptied(line.encode()).decode().endswith("…") == bool(line)


@pytest.mark.parametrize(
    "text",
    [
        "ray.exceptions.ActorDiedError: The actor died\n\tpid: 1009098\n\tip: 172.23.166.108",
        "RuntimeError: NCCL error in: x.cpp:1, system error\nncclSystemError: y\nLast error:\nNet : Connect to x",
        "worker-7: Traceback (most recent call last):\nworker-7:     batch = next(it)\nworker-7: StopIteration",
        "[rank0]:[E327 17:04:16.9 ProcessGroupNCCL.cpp:565] [Rank 0]\nWatchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=2,\nOpType=ALLREDUCE, Timeout(ms)=1000) ran for\n1099 milliseconds before timing out.",
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-15\n  host      : gpu-1\n  rank      : 3",
    ],
    ids=["actor", "last error", "traceback", "broken lines", "table of failures"],
)
def test_messages_of_several_lines_stay_whole(text: str) -> None:
    """Rows of reports, NCCL's quoted words, tracebacks and what a terminal broke into lines are kept together."""
    lines, left = kept(text)
    assert "\n".join(lines) == text
    assert left == 0


def test_stacks_lose_the_values_of_their_variables() -> None:
    """Frames of py-spy stay, what it prints of variables beside them does not."""
    stack = [
        "# hangscope stacks rank=3 pid=7 sample=1 by=py-spy",
        'Thread 7 (idle): "MainThread"',
        "    step (train.py:3)",
        "        Arguments:",
        "            password: 'x'",
        "    main (train.py:9)",
    ]
    lines, _ = kept("\n".join(stack), "stacks/rank_3.1.txt")
    assert [line for line in lines if line != "…"] == [stack[0], stack[1], stack[2], stack[5]]


def test_in_json_a_text_of_several_lines_is_a_log() -> None:
    """Of an error file's texts the first line and what is evidence stay, and the rest of the JSON as it is."""
    stack = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in f\nValueError: x\nour private notes\nmore'
    said = {"message": {"message": "ValueError: x\nprivate", "extraInfo": {"py_callstack": stack, "timestamp": "1"}}}
    lines, left = kept(json.dumps(said, indent=3), "error.json")
    found = json.loads("\n".join([*lines, "}"]))["message"]
    assert found["message"] == "ValueError: x\n…"
    assert found["extraInfo"] == {"py_callstack": stack.split("\nour")[0] + "\n…", "timestamp": "1"}
    assert left == 3
    assert lines_of_evidence("one\n\ntwo\nthree") == ("one\n\n…", 2)


@pytest.mark.parametrize(
    ("name", "text", "known"),
    [
        ("notes.txt", "nothing of interest\n", False),
        ("config.json", '{"private": 1}', False),
        ("rank_3.log", "nothing of interest\n", True),
        ("nccl.gpu-1.77.log", "", True),
        ("stall.json", '{"by": "a", "at": 1.0, "reason": "stall", "detail": "x"}', True),
        ("node.json", '{"schema": "hangscope.node/1"}', True),
        ("x/gpu/nvidia-smi.txt", "==============NVSMI LOG==============\n\nDriver Version   : 580.1\n", True),
    ],
)
def test_files_that_no_reader_knows_are_left_out(name: str, text: str, known: bool) -> None:
    """A rank's log counts although it says nothing, hangscope's own files do, and others only by what is in them."""
    assert (kept(text, name)[1] is not None) == known


def test_a_line_that_the_verdict_cites_is_evidence() -> None:
    """Whatever it says: the ticket quotes it."""
    lines, _ = kept("a private line\nanother\n", cited=(2,))
    assert lines == ["…", "another"]
