"""All ranks' stacks as one tree."""

from __future__ import annotations

import json
from collections.abc import Iterable

from hangscope.diagnosis import diagnose
from hangscope.model import Facts, Frame, Job, Source, ThreadStack
from hangscope.report.page.render_page import all_stacks
from hangscope.report.stack_lines import Look, stack_lines
from hangscope.report.stack_tree import MOST_FRAMES, stack_tree, to_values
from hangscope.report.text_layout import cells, plain
from kits.small_jobs import Op, job

LIB = "/usr/lib/python3.12/site-packages/torch"
MODULE = Frame("<module>", "/job/train.py", 90)
STEP = Frame("step", "/job/train.py", 40)
SAVE = Frame("save", "/job/train.py", 8)
WRAPPER = Frame("wrapper", f"{LIB}/distributed/c10d_logger.py", 83)
ALL_REDUCE = Frame("all_reduce", f"{LIB}/distributed/distributed_c10d.py", 3068)


def stack(rank: int, *frames: Frame, main: bool = True, pid: int | None = None, child: bool = False) -> ThreadStack:
    """Frames outermost first, as the tree has them."""
    source = Source(f"stacks/rank_{rank}.1.txt")
    return ThreadStack(rank, pid or 4000 + rank, "t", frames[::-1], source, main=main, child=child)


def of(stacks: Iterable[ThreadStack], ranks: int) -> Job:
    ops = {rank: [Op("default_pg"), Op("default_pg", state="started")] for rank in range(ranks)}
    ops[ranks - 1] = [Op("default_pg")]
    return job({"default_pg": list(range(ranks))}, ops, facts=Facts(stacks=tuple(stacks)))


def text(given: Job, **look: object) -> str:
    return plain(stack_lines(stack_tree(given), Look(**look)))  # type: ignore[arg-type]


def waiting(rank: int) -> ThreadStack:
    return stack(rank, MODULE, STEP, WRAPPER, ALL_REDUCE)


def test_a_thousand_ranks_are_two_branches() -> None:
    """Ranks at the same place share a branch and are said as ranges; the one elsewhere is marked."""
    many = [waiting(rank) for rank in range(1023)]
    assert text(of([*many, stack(1023, MODULE, STEP, SAVE)], 1024)).splitlines() == [
        "1024 ranks, the training thread of each, outermost call first",
        "",
        "ranks 0-1023 (1024)",
        "train.py:90  <module>",
        "train.py:40  step",
        "├─ ranks 0-1022 (1023)",
        "│  torch/distributed/c10d_logger.py:83  wrapper",
        "│  torch/distributed/distributed_c10d.py:3068  all_reduce",
        "└─ rank 1023  ◀ few: 1 of 1024",
        "   train.py:8  save",
    ]


def test_equal_halves_are_nobodys_oddity() -> None:
    """Where as many are here as there, neither branch is marked."""
    tree = stack_tree(of([waiting(0), waiting(1), stack(2, MODULE, SAVE), stack(3, MODULE, SAVE)], 4))
    assert [way.odd for way in tree.branches[0].ways] == [False, False]


def test_two_tools_name_one_place() -> None:
    """py-spy gives a function's whole name and a file's whole path, faulthandler does not: that is no other branch."""
    spied = [Frame(f"Trainer.{f.name}" if f is STEP else f.name, f.filename, f.line) for f in (MODULE, STEP)]
    relative = [Frame(f.name, "train.py", f.line) for f in (MODULE, STEP)]
    (branch,) = stack_tree(of([stack(0, *spied), stack(1, *relative), stack(2, *relative)], 3)).branches
    assert (branch.ranks, branch.ways) == ((0, 1, 2), ())


def test_a_stack_that_ends_where_others_go_on_is_a_branch() -> None:
    """Who is in the shared call itself is listed beside those that went deeper."""
    tree = stack_tree(of([stack(0, MODULE), stack(1, MODULE, STEP), stack(2, MODULE, STEP)], 3))
    deeper, here = tree.branches[0].ways
    assert (deeper.ranks, here.ranks, here.frames) == ((1, 2), (0,), ())


def test_library_frames_between_own_lines_are_folded() -> None:
    """Three and more of them are one line, unless every frame is asked for; those innermost stay."""
    calls = [Frame("_call_impl", f"{LIB}/nn/modules/module.py", line) for line in (1, 2, 3)]
    given = of([stack(rank, MODULE, *calls, STEP, *calls) for rank in range(2)], 2)
    assert "… 3 frames of libraries" in text(given)
    assert text(given).count("_call_impl") == 3
    assert text(given, every_frame=True).count("_call_impl") == 6


def test_every_thread_where_asked_for() -> None:
    """The threads beside the training one, and processes that a rank started, each from where it began."""
    worker = stack(0, MODULE, Frame("_worker_loop", f"{LIB}/utils/data/_utils/worker.py", 3), SAVE, pid=77, child=True)
    other = stack(0, Frame("_bootstrap", "/usr/lib/python3.12/threading.py", 9), STEP, main=False)
    tree = stack_tree(of([waiting(0), other, worker, waiting(1)], 2), all_threads=True)
    assert sum(branch.stacks for branch in tree.branches) == 4
    assert [branch.frames for branch in tree.branches if SAVE in branch.frames] == [(SAVE,)]


def test_endless_stacks_and_a_place_for_everybody_stay_readable() -> None:
    """Recursion without end, and a thousand ranks at a thousand places, are a few lines no wider than asked for."""
    deep = [Frame("f" * 300, f"/job/{'d' * 3000}/train.py", number % 7) for number in range(5000)]
    given = of([stack(rank, MODULE, *deep, Frame("at", "/job/x.py", rank)) for rank in range(1024)], 1024)
    lines = stack_lines(stack_tree(given), Look(80))
    assert len(lines) < 300
    assert max(cells("".join(piece.text for piece in line)) for line in lines) <= 100
    assert "other places" in plain(lines)
    assert len(stack_tree(given).branches[0].frames) <= MOST_FRAMES + 1


def test_branches_below_branches_end_somewhere() -> None:
    """A rank that leaves at every depth makes no line that runs out of the screen, and nothing fails."""
    comb = [stack(rank, *(Frame("f", "/job/x.py", at) for at in range(rank + 1))) for rank in range(300)]
    lines = stack_lines(stack_tree(of(comb, 300)), Look(100))
    assert max(len("".join(piece.text for piece in line)) for line in lines) < 260


def test_names_cannot_move_the_cursor() -> None:
    """Escapes in a function's or a file's name are shown and not sent."""
    assert "\x1b" not in text(of([stack(r, Frame("\x1b[2Jf", "/job/\x1b]0;x.py", 1)) for r in range(2)], 2))


def test_ranks_without_a_stack_are_said() -> None:
    """Who is missing is named, and not counted as being anywhere."""
    assert "no stack of ranks 2, 3" in text(of([waiting(0), waiting(1)], 4))


def test_programs_get_all_of_it() -> None:
    """The JSON has every branch with its frames and ranks."""
    value = json.loads(json.dumps(to_values(stack_tree(of([waiting(0), waiting(1), stack(2, MODULE, SAVE)], 3)))))
    assert (value["schema"], value["ranks"], value["ranks_without_stack"]) == ("hangscope.stacks/1", [0, 1, 2], [])
    (root,) = value["tree"]
    assert root["frames"] == [{"name": "<module>", "filename": "/job/train.py", "line": 90}]
    assert [(way["ranks"], way["odd"]) for way in root["branches"]] == [([0, 1], False), ([2], True)]


def test_the_page_marks_the_culprit() -> None:
    """The tree of the page knows the verdict; without stacks there is none."""
    given = of([waiting(0), waiting(1), stack(2, MODULE, SAVE)], 3)
    drawn = all_stacks(diagnose(given), given)
    assert drawn is not None
    assert [text for line in drawn["lines"] for text, role in line if role == "culprit"] == ["rank 2", "  ◀ culprit"]
    assert all_stacks(diagnose(of([], 3)), of([], 3)) is None
