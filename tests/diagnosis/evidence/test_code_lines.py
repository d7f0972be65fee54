"""The code line in the first line: which thread trains, where it stands, and what a held GIL says."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.evidence.code_lines import through, user_frame, where_paths_part
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import CallSite, Facts, Frame, Process, Source, ThreadStack
from hangscope.report.export import to_dict
from hangscope.sources.call_sites import read as call_sites
from hangscope.sources.call_sites.learn import CallSites
from hangscope.text import installed_package, is_own_code
from kits.small_jobs import Op, job

LIB = "/usr/lib/python3.12"
SITE = f"{LIB}/site-packages"
D = "default_pg"

SAVE = Frame("save_checkpoint", "/workspace/train.py", 8)
STEP = Frame("step", "/workspace/train.py", 40)
MODULE = Frame("<module>", "/workspace/train.py", 90)
ALL_REDUCE = Frame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 3068)
WAIT = Frame("wait", f"{LIB}/threading.py", 355)
THREAD = Frame("_bootstrap", f"{LIB}/threading.py", 1032)
QUEUE = Frame("_try_get_data", f"{SITE}/torch/utils/data/dataloader.py", 1275)
WORKER_LOOP = Frame("_worker_loop", f"{SITE}/torch/utils/data/_utils/worker.py", 349)


def thread(*frames: Frame, main: bool = True, rank: int = 2, sample: int = 1, **more: object) -> ThreadStack:
    source = Source(f"stacks/rank_{rank}.{sample}.txt", "line 2")
    made = ThreadStack(rank, 4700 + rank, "t", frames, source, main=main, sample=sample)
    return replace(made, **more)  # type: ignore[arg-type]


def absent(*stacks: ThreadStack, **more: object) -> Diagnosis:
    """Rank 2 never comes to the second all_reduce."""
    ops = {0: [Op(D), Op(D, state="started")], 1: [Op(D), Op(D, state="started")], 2: [Op(D)]}
    return diagnose(job({D: [0, 1, 2]}, ops, facts=Facts(stacks=stacks), **more))


# ---- the line --------------------------------------------------------------------------------------------------------


def test_the_line_comes_first() -> None:
    """The headline says in which function and line the rank stands, then what it never launched."""
    assert (
        absent(thread(SAVE, MODULE)).headline
        == "rank 2 is in save_checkpoint (train.py:8), and never launched all_reduce #2"
    )


def test_without_a_stack_the_last_call_is_the_line() -> None:
    """Where no stack was taken, the recorded line of its last call says after what it stays away."""
    assert absent().headline.endswith("never launched all_reduce #2 after its call in step (train.py:10)")


def test_library_frames_alone_name_no_line() -> None:
    """A stack of PyTorch and the standard library has no line of the user's, and none is made up."""
    assert "threading.py" not in absent(thread(WAIT, Frame("_run", "<frozen runpy>", 9))).headline


def test_a_rank_that_moves_is_named_by_the_function_that_it_stays_in() -> None:
    """Two samples at different lines of one function: it runs there; at different functions: in what calls both."""
    later = replace(STEP, line=41)
    found = absent(thread(STEP, MODULE), thread(SAVE, later, MODULE, sample=2))
    assert found.headline.startswith("rank 2 runs step (train.py:41), and")
    same = absent(thread(WAIT, SAVE, MODULE), thread(ALL_REDUCE, SAVE, MODULE, sample=2))
    assert same.headline.startswith("rank 2 is in save_checkpoint (train.py:8), and")


def test_samples_of_two_tools_are_of_one_place() -> None:
    """py-spy writes the class into the name and may shorten the path; that is no movement."""
    spy = Frame("Trainer.save_checkpoint", "train.py", 8)
    found = absent(thread(SAVE, MODULE), thread(spy, replace(MODULE, filename="train.py"), sample=2))
    assert found.headline.startswith("rank 2 is in Trainer.save_checkpoint (train.py:8), and")


def test_long_paths_and_names_are_cut() -> None:
    """The file's own name is enough, with its folder where all are called alike; nothing fills the terminal."""
    deep = replace(SAVE, filename="/workspace/" + "very/" * 50 + "deep/__init__.py", name="f" * 500)
    first = absent(thread(deep)).headline
    assert "(deep/__init__.py:8)" in first
    assert len(first) < 200


def test_several_culprits_have_a_line_each() -> None:
    """Ranks that stand at one line share it; where they stand apart, the first two are named."""
    ops = {0: [Op(D), Op(D, state="started")], **{rank: [Op(D)] for rank in (1, 2)}, 3: [Op(D), Op(D, state="started")]}
    together = job({D: range(4)}, ops, facts=Facts(stacks=(thread(SAVE, rank=1), thread(SAVE, rank=2))))
    assert diagnose(together).headline.startswith("ranks 1, 2 are in save_checkpoint (train.py:8), and never launched")
    apart = job({D: range(4)}, ops, facts=Facts(stacks=(thread(SAVE, rank=1), thread(STEP, rank=2))))
    assert diagnose(apart).headline.endswith(
        "; rank 1 is in save_checkpoint (train.py:8), rank 2 is in step (train.py:40)"
    )


def test_a_mismatch_without_recorded_frames_is_named_by_the_stacks() -> None:
    """Gloo's recorder has no frames: a rank that is inside the odd call stands at its line."""
    usual = [Op(D), Op(D, state="scheduled")]
    odd = [usual[0], Op(D, "broadcast", state="scheduled")]
    stacks = (thread(ALL_REDUCE, SAVE, rank=2), *(thread(ALL_REDUCE, STEP, rank=rank) for rank in (0, 1)))
    found = diagnose(job({D: range(3)}, {0: usual, 1: usual, 2: odd}, stacks=False, facts=Facts(stacks=stacks)))
    assert found.headline == (
        "rank 2 ran broadcast in save_checkpoint (train.py:8) where the rest ran all_reduce in step (train.py:40) (#2)"
    )


# ---- the training thread ---------------------------------------------------------------------------------------------

RAY = Frame("main_loop", f"{SITE}/ray/_private/worker.py", 1010)
RAY_THREAD = Frame("run", f"{SITE}/ray/train/v2/_internal/execution/worker_group/thread_runner.py", 60)
WRITER = Frame("run", f"{SITE}/tensorboard/summary/writer/event_file_writer.py", 244)
PIN = Frame("_pin_memory_loop", f"{SITE}/torch/utils/data/_utils/pin_memory.py", 50)
RESULT = Frame("result", f"{LIB}/concurrent/futures/_base.py", 451)


@pytest.mark.parametrize(
    "threads",
    [
        [thread(RAY, Frame("<module>", f"{SITE}/ray/_private/workers/default_worker.py", 300))],
        [thread(WAIT, RESULT, STEP, MODULE)],
        [thread(WAIT, Frame("join", f"{LIB}/threading.py", 1112), STEP, MODULE)],
        [thread(WAIT, RESULT, STEP, MODULE), thread(WAIT, WRITER, THREAD, main=False)],
    ],
    ids=["ray", "executor", "join", "writer beside"],
)
def test_training_beside_the_main_thread_is_found(threads: list[ThreadStack]) -> None:
    """Ray's loop, an executor's or a thread's owner wait; the line is that of the thread which runs the user's code."""
    helpers = [thread(WAIT, PIN, THREAD, main=False), thread(WAIT, WRITER, THREAD, main=False)]
    training = thread(SAVE, RAY_THREAD, THREAD, main=False)
    found = absent(*helpers, training, *threads)
    assert found.headline.startswith("rank 2 is in save_checkpoint (train.py:8), and")
    assert any("thread beside its main one" in finding.text for finding in found.why)


def test_a_training_thread_that_waits_for_a_queue_is_the_line_its_owner_joins() -> None:
    """The main thread waits for its end: that thread's line is the one, unless several wait so."""
    owner = thread(WAIT, Frame("join", f"{LIB}/threading.py", 1112), STEP, MODULE)
    put = thread(WAIT, Frame("put", f"{LIB}/queue.py", 140), SAVE, THREAD, main=False)
    assert absent(put, owner).headline.startswith("rank 2 is in save_checkpoint (train.py:8), and")
    other = thread(WAIT, Frame("get", f"{LIB}/queue.py", 171), Frame("beat", "/workspace/train.py", 5), main=False)
    assert absent(put, other, owner).headline.startswith("rank 2 is in step (train.py:40), and")


def test_the_main_thread_speaks_where_it_works_itself() -> None:
    """Threads of the user's own beside it (a prefetcher, a heartbeat) do not take its place."""
    heartbeat = thread(Frame("beat", "/workspace/train.py", 5), THREAD, main=False)
    in_collective = thread(ALL_REDUCE, Frame("beat", "/workspace/train.py", 5), THREAD, main=False)
    for beside in (heartbeat, in_collective):
        assert absent(beside, thread(SAVE, MODULE)).headline.startswith("rank 2 is in save_checkpoint")


def test_rays_own_frames_are_no_ones_code() -> None:
    """What hosts the training is a library; a folder of the user's with such a name is not."""
    assert not is_own_code(f"{SITE}/ray/train/_internal/session.py")
    assert not is_own_code("ray/_private/worker.py")
    assert is_own_code("/workspace/ray/train.py")


# ---- processes that the rank started ---------------------------------------------------------------------------------

READ = Frame("__getitem__", "/workspace/data.py", 12)
FORKED = (WORKER_LOOP, Frame("run", f"{LIB}/multiprocessing/process.py", 108), STEP, MODULE)


def test_a_worker_that_is_stuck_is_the_line() -> None:
    """The rank waits for its DataLoader: the line is the worker's, not those that it has from its parent's fork."""
    stuck = thread(READ, *FORKED, main=False, child=True, pid=900)
    idle = thread(WAIT, *FORKED, main=False, child=True, pid=901)
    found = absent(thread(WAIT, QUEUE, STEP, MODULE), idle, stuck)
    assert found.headline.startswith("rank 2 waits for its worker process in __getitem__ (data.py:12), and never")
    assert "worker process 900" in found.next_steps[0]


def test_workers_at_work_explain_no_rank_that_waits_for_none() -> None:
    """Whoever stands in its own code does not wait for its loaders, however busy they are."""
    busy = thread(READ, *FORKED, main=False, child=True, pid=900)
    assert absent(busy, thread(SAVE, MODULE)).headline.startswith("rank 2 is in save_checkpoint")


def test_idle_workers_leave_the_line_with_the_rank() -> None:
    """Workers without work say nothing, and no more than the rank's own line is named."""
    idle = thread(WAIT, *FORKED, main=False, child=True, pid=901)
    assert absent(idle, thread(WAIT, QUEUE, STEP, MODULE)).headline.startswith("rank 2 is in step (train.py:40), and")


# ---- a held GIL ------------------------------------------------------------------------------------------------------

LAUNCH = Frame("cudaLaunchKernel", "/usr/local/cuda/lib/libcudart.so.12", 0)
DRIVER = Frame("0x7f12", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", 0)
REGEX = Frame("sre_ucs1_match", "/usr/lib/libpython3.12.so.1.0", 0)
ADAM = Frame("_multi_tensor_adamw", f"{SITE}/torch/optim/adamw.py", 600)


def held(
    *holders: int, syscall: str | None = None, file: str | None = None, busy: float | None = None
) -> dict[int, Process]:
    here = Source("node.json", "ranks")
    return {
        rank: Process(
            rank,
            pid=4700 + rank,
            gpu=f"0000:0{rank}:00.0",
            alive_at_end=True,
            state="R",
            python_answers=rank not in holders,
            syscall=syscall if rank in holders else None,
            syscall_file=file if rank in holders else None,
            gpu_busy_percent=busy,
            source=here,
        )
        for rank in range(3)
    }


def test_a_launch_into_a_full_queue_is_the_gpus_fault() -> None:
    """All hold their GIL in cudaLaunchKernel; the one that others wait for has a GPU that does not finish."""
    stacks = [thread(ADAM, STEP, rank=rank, native=(DRIVER, LAUNCH), holds_gil=True) for rank in range(3)]
    found = absent(*stacks, processes=held(0, 1, 2))
    assert (found.kind, [c.rank for c in found.culprits]) == ("gpu", [2])
    said = "rank 2's GPU never finishes a kernel; its CPU waits in cudaLaunchKernel, in step (train.py:40)"
    assert found.headline == said


def test_a_kernel_that_never_ends_before_a_recorded_launch() -> None:
    """Its collective is launched and not started, while its CPU waits in a CUDA call: it is the kernel before."""
    ops = {rank: [Op(D), Op(D, state="started" if rank < 2 else "scheduled")] for rank in range(3)}
    stacks = [thread(ADAM, STEP, rank=rank, native=(LAUNCH,), holds_gil=True) for rank in range(3)]
    found = diagnose(job({D: range(3)}, ops, facts=Facts(stacks=tuple(stacks)), processes=held(0, 1, 2)))
    assert (found.kind, [c.rank for c in found.culprits]) == ("gpu", [2])
    assert found.headline.startswith("rank 2's GPU never finishes a kernel before all_reduce #2; its CPU waits in cuda")


def test_python_code_that_holds_the_gil_is_frozen() -> None:
    """Native frames without CUDA: its own code holds it, and the line is there."""
    regex = thread(Frame("match", f"{LIB}/re/__init__.py", 166), SAVE, native=(REGEX,), holds_gil=True)
    found = absent(regex, processes=held(0, 2))
    assert (found.kind, found.confidence) == ("frozen", "high")
    assert found.headline == "rank 2 is in save_checkpoint (train.py:8), and holds the GIL"


@pytest.mark.parametrize(
    ("syscall", "file", "kind"),
    [("openat", None, "frozen"), ("ioctl", "/dev/nvidia0", "gpu"), ("running", None, "absent"), (None, None, "absent")],
)
def test_the_kernels_word_tells_where_no_native_frame_does(syscall: str | None, file: str | None, kind: str) -> None:
    """A file that does not open is the rank's own affair, the driver's device the GPU's; otherwise it is not known."""
    found = absent(processes=held(0, 1, 2, syscall=syscall, file=file))
    assert (found.kind, [c.rank for c in found.culprits]) == (kind, [2])


@pytest.mark.parametrize(("busy", "kind"), [(0.0, "frozen"), (100.0, "absent")])
def test_a_gpu_that_runs_nothing_keeps_nobody(busy: float, kind: str) -> None:
    """Who holds its GIL while no kernel runs on its GPU does not wait for it; a busy GPU says nothing by itself."""
    found = absent(processes=held(0, 1, 2, busy=busy))
    assert (found.kind, [c.rank for c in found.culprits]) == (kind, [2])


def test_a_held_gil_alone_is_no_guilt() -> None:
    """Where others hold theirs too and nothing tells in what, nobody is called frozen, and nothing is said at high."""
    found = absent(processes=held(0, 1, 2))
    assert (found.kind, found.confidence) == ("absent", "medium")
    alone = absent(processes=held(2))
    assert (alone.kind, alone.confidence) == ("frozen", "medium")


def test_a_victim_that_holds_its_gil_is_not_accused() -> None:
    """It waits inside what everybody waits in: the rank that never came is the cause, whose Python answers."""
    stacks = [thread(ADAM, STEP, rank=rank, native=(LAUNCH,)) for rank in (0, 1)]
    found = absent(*stacks, thread(SAVE, MODULE), processes=held(0, 1))
    assert (found.kind, [c.rank for c in found.culprits]) == ("absent", [2])


def test_the_thread_that_holds_the_gil_is_the_line() -> None:
    """A helper thread that never lets go of the GIL stops the rank, wherever its main thread is."""
    helper = thread(SAVE, THREAD, main=False, holds_gil=True, native=(REGEX,))
    found = absent(thread(STEP, MODULE), helper, processes=held(2))
    assert found.headline.startswith("rank 2 is in save_checkpoint (train.py:8), and")


# ---- learnt lines ----------------------------------------------------------------------------------------------------


def site(line: int, *, rank: int = 0, before: int = 2, size: str = "16") -> CallSite:
    frames = (ALL_REDUCE, Frame("average", "/workspace/train.py", line))
    call = ("0", "all_reduce", size)
    return CallSite(rank, call, (call,) * before, frames, Source(f"sites/rank_{rank}.json", "sites[0]"))


def learnt(*sites: CallSite, calls: int = 3) -> str:
    usual = [*[Op(D)] * calls, Op(D, state="started")]
    ops = {0: usual, 1: usual, 2: usual[:-1]}
    found = diagnose(job({D: range(3)}, ops, stacks=False, facts=Facts(sites=sites)))
    assert [c.rank for c in found.culprits] == [2]
    return found.why[0].text


def test_a_learnt_line_says_that_it_is_of_earlier_steps() -> None:
    """Where the dump has no frames, the line of the same call in the steps before is named as such."""
    assert learnt(site(54)).endswith("called at /workspace/train.py:54 (as in earlier steps)")


def test_the_place_in_the_step_decides_between_lines() -> None:
    """Of two lines that make the same call, the one after the same two calls counts; without one, none is named."""
    first = replace(site(54), before=(("0", "broadcast", "16"),) * 2)
    assert "train.py:70" in learnt(first, site(70))
    assert "train.py" not in learnt(site(54), site(70))


def test_other_sizes_and_groups_are_other_calls() -> None:
    """A line learnt of another size says nothing about this call."""
    assert "train.py" not in learnt(site(54, size="32"))


def test_another_ranks_line_stands_in() -> None:
    """All ranks run one program: where a rank's own calls were not learnt, another's are taken."""
    assert "train.py:54" in learnt(site(54, rank=2))


def test_recorded_frames_win_over_learnt_ones() -> None:
    """What was recorded of this very call is what counts."""
    ops = {0: [Op(D), Op(D, state="started")], 1: [Op(D), Op(D, state="started")], 2: [Op(D)]}
    found = diagnose(job({D: range(3)}, ops, facts=Facts(sites=(site(54, before=1),))))
    assert "steps before" not in found.why[0].text


# ---- sites/rank_<r>.json ---------------------------------------------------------------------------------------------


def pickled(*entries: dict[str, Any]) -> bytes:
    return pickle.dumps({"version": "2.10", "entries": list(entries)}, protocol=2)


def recorded(name: str, line: int, size: int = 16) -> dict[str, Any]:
    frames = [{"name": "average", "filename": "/workspace/train.py", "line": line}]
    made = {"process_group": ("0", "default_pg"), "profiling_name": f"nccl:{name}", "input_sizes": [[size]]}
    return {**made, "frames": frames}


def written(*bodies: bytes) -> dict[str, Any]:
    learnt = CallSites()
    for body in bodies:
        learnt.take("nccl", body)
    found = learnt.file(3)
    return json.loads(json.dumps(found)) if found is not None else {}


def test_what_was_learnt_is_read_back() -> None:
    """From a dump with stacks to call sites: group, operation, sizes, the two calls before, and the frames."""
    step = [recorded("all_gather", 5), recorded("all_reduce", 6), recorded("all_reduce", 7)]
    found = call_sites.read_object(written(pickled(*step, *step)), "sites/rank_3.json").sites
    last = [s for s in found if len(s.before) == 2 and s.frames[0].line == 7]
    assert {s.call for s in last} == {("0", "all_reduce", "16")}
    assert {s.before[-1][1] for s in last} == {"all_reduce"}
    assert {s.rank for s in found} == {3}


def test_lines_that_cannot_be_told_apart_are_left_out() -> None:
    """The same call after the same two calls from two lines: neither is named."""
    calls = [recorded("all_reduce", 5), recorded("all_reduce", 5), recorded("all_reduce", 6), recorded("all_reduce", 7)]
    found = call_sites.read_object(written(pickled(*calls)), "s").sites
    assert all(len(s.before) < 2 for s in found)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("evil",)


@pytest.mark.parametrize(
    "body", [b"", b"\x80\x02}", pickle.dumps(Evil()), pickle.dumps([1]), pickled(), b"\x80\x02r\xff\xff\xff\xff."]
)
def test_a_broken_or_evil_answer_teaches_nothing(body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is called, no memory is taken, and no file is written."""
    assert written(body) == {}
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    "damage",
    [
        {"schema": "hangscope.sites/2"},
        {"rank": -1},
        {"sites": None},
        {"stacks": [[["f", "x.py"]]]},
        {"stacks": [[[1, 2, 3]]]},
        {"sites": [7, {}, {"call": ["0"], "before": [], "stack": 0, "lines": 1}]},
        {"sites": [{"call": ["0", "x", ""], "before": [1], "stack": 0, "lines": 1}]},
        {"sites": [{"call": ["0", "x", ""], "before": [], "stack": 9, "lines": 1}]},
    ],
)
def test_a_damaged_file_gives_no_site(damage: dict[str, Any]) -> None:
    """What does not say what it should is passed over, without a traceback."""
    whole = written(pickled(recorded("all_reduce", 5)))
    assert call_sites.read_object(whole, "s").sites
    damaged = {**whole, **damage}
    assert not call_sites.recognise_object(damaged) or not call_sites.read_object(damaged, "s").sites


# ---- whose line it is ------------------------------------------------------------------------------------------------

GATHER = Frame("_gpu_gather_one", f"{SITE}/accelerate/utils/operations.py", 355)
ACCELERATOR = Frame("gather", f"{SITE}/accelerate/accelerator.py", 2801)


def test_the_line_is_the_one_that_the_user_can_change() -> None:
    """Of a stack that ends in an installed package the line is the user's that called it, and the package's second: in
    the headline and in the verdict's data."""
    verdict = absent(thread(WAIT, GATHER, ACCELERATOR, SAVE, MODULE))
    assert "is in save_checkpoint (train.py:8) through _gpu_gather_one (accelerate's operations.py:355)" in (
        verdict.headline
    )
    where = verdict.culprits[0].where
    assert where is not None
    assert (where.file, where.line) == (SAVE.filename, 8)
    assert where.through == GATHER
    assert to_dict(verdict)["culprits"][0]["where"]["through"]["line"] == 355


@pytest.mark.parametrize(
    "file",
    [
        "/usr/lib/python3/dist-packages/accelerate/accelerator.py",
        "/opt/conda/envs/llm/lib/python3.10/site-packages/accelerate/accelerator.py",
        "/home/u/.local/lib/python3.12/site-packages/accelerate/accelerator.py",
        "C:\\Python\\Lib\\site-packages\\accelerate\\accelerator.py",
        "/root/.pex/installed_wheels/0/accelerate-1.0-py3-none-any.whl/accelerate/accelerator.py",
        "accelerate/accelerator.py",
    ],
)
def test_installed_packages_are_known_by_their_path(file: str) -> None:
    """pip, conda, Debian, a user's own installation, Windows, pex, and the short names of py-spy."""
    assert installed_package(file) == "accelerate"


@pytest.mark.parametrize(
    "file", ["/workspace/train.py", "/home/u/accelerate/src/accelerate/accelerator.py", "model.py"]
)
def test_a_source_tree_is_the_users_own(file: str) -> None:
    """What lies in a checkout can be changed, whatever it is called."""
    assert installed_package(file) == ""


def test_where_all_is_installed_the_program_is_the_users() -> None:
    """Of a program that was installed itself, the line is the innermost of its own package and not of what it uses."""
    mine = Frame("train_step", f"{SITE}/mymodel/loop.py", 77)
    main = Frame("main", f"{SITE}/mymodel/cli.py", 12)
    script = Frame("<module>", "/opt/venv/bin/mymodel", 8)
    assert user_frame((WAIT, GATHER, ACCELERATOR, mine, main, script)) == mine
    assert through((WAIT, GATHER, ACCELERATOR, mine, main, script)) == GATHER


def test_a_command_of_the_users_own_is_a_line() -> None:
    """A script without an ending, in a bin folder, is the user's where nothing installed was called from it."""
    script = Frame("<module>", "/home/u/project/bin/train", 31)
    assert user_frame((WAIT, script)) == script


def test_where_no_line_is_the_users_the_packages_is_said_as_its() -> None:
    """A thread of a framework's own has no line of the user's: its line is given with whose it is."""
    verdict = absent(thread(WAIT, GATHER, ACCELERATOR))
    assert "is in _gpu_gather_one (accelerate's operations.py:355)" in verdict.headline


def test_calls_that_part_in_the_users_code_are_told_apart_there() -> None:
    """Two calls are told apart by the user's lines, and by those of a package only where the user's are the same."""
    other = Frame("validate", "/workspace/train.py", 60)
    assert where_paths_part((GATHER, SAVE, MODULE), (ACCELERATOR, other, MODULE)) == (SAVE, other)
    assert where_paths_part((GATHER, SAVE, MODULE), (ACCELERATOR, SAVE, MODULE)) == (GATHER, ACCELERATOR)
