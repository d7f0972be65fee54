"""What a verdict says must be true of every rank it speaks of: the words, on recorded and on small jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.diagnosis.evidence.code_lines import user_frame
from hangscope.model import Facts, Frame, Process, Source, ThreadStack
from hangscope.report.rank_strip import assign
from hangscope.report.terminal import render_text
from hangscope.report.ticket import render_ticket
from hangscope.report.verdict_text import brief
from hangscope.text import first_line, is_own_code
from kits.recorded import CASES, verdict_of
from kits.small_jobs import Op, job, recv, send

D = "default_pg"
LIB = "/usr/lib/python3.12"
TORCH = "/usr/local/lib/python3.12/dist-packages/torch"


def recorded(case: str) -> Diagnosis:
    return verdict_of(CASES / case)


def shown(verdict: Diagnosis) -> str:
    return "\n".join(line for finding in verdict.why for line in (finding.text, *finding.detail))


# ---- members that disagree -------------------------------------------------------------------------------------------


def test_another_type_is_not_an_extra_call() -> None:
    """Where all ranks made as many calls and agree right after, the one call differs: nothing was added or left out."""
    verdict = recorded("dtype_first")
    call = "_all_gather_base #9 in dtype_first (pretrain.py:259)"
    assert verdict.headline == f"rank 0 passed [16384] BFloat16 to {call}, the rest [16384] Float"
    assert "extra call" not in " ".join(verdict.next_steps)


@pytest.mark.parametrize("stacks", [True, False])
def test_periodic_calls_hide_no_wrong_type(stacks: bool) -> None:
    """A sequence that repeats fits itself again when moved by a round; unmoved it fits as well, so it was not moved."""
    rounds = [Op(D, "all_gather", line=1), Op(D, "all_reduce", line=2)] * 3
    wrong = [*rounds[:2], replace(rounds[2], dtype="Half"), *rounds[3:]]
    verdict = diagnose(job({D: [0, 1, 2]}, {0: wrong, 1: rounds, 2: rounds}, stacks=stacks))
    line = " in step (train.py:1)" if stacks else ""
    said = f"rank 0 passed [16] Half for its output to all_gather #3{line}, the rest [16] Float for its output"
    assert (verdict.kind, verdict.headline) == ("mismatch", said)


def test_a_call_left_out_of_equal_ones_is_still_found() -> None:
    """Equal calls after a left-out one agree unmoved as well, but not all of them: the shift explains one more."""
    calls = [Op(D, "broadcast", line=5), *[Op(D, line=6)] * 4]
    verdict = diagnose(job({D: [0, 1, 2]}, {0: calls, 1: calls, 2: calls[1:]}))
    assert verdict.headline == "rank 2 skipped broadcast #1 in step (train.py:5)"


def ddp(rounds: int, *, backward: bool = True) -> list[Op]:
    """Forward's broadcast of buffers, then the gradients' buckets."""
    forward = [Op(D, "broadcast", elements=256, line=10), Op(D, "broadcast", elements=1, line=10)]
    buckets = [Op(D, elements=8256, line=11), Op(D, elements=8576, line=11)]
    return [*forward, *buckets] * rounds + (forward if not backward else [])


def test_going_on_with_the_next_round_is_leaving_out() -> None:
    """A rank that makes the next step's usual calls left out the rest of this one, rather than to make calls twice."""
    stuck = [Op(D, elements=8256, line=11, state="started"), Op(D, elements=8576, line=11, state="scheduled")]
    peers = [*ddp(3, backward=False), *stuck]
    odd = [*ddp(3, backward=False), *ddp(0, backward=False), *stuck]
    verdict = diagnose(job({D: [0, 1, 2, 3]}, {0: peers, 1: odd, 2: peers, 3: peers}))
    assert verdict.headline == "rank 1 skipped 2 calls, starting with all_reduce #15 in step (train.py:11)"
    assert verdict.operation is not None
    assert (verdict.operation.name, verdict.operation.seq) == ("all_reduce", 15)
    assert recorded("ddp_skip").headline == "rank 7 skipped 2 calls, starting with all_reduce #24"


def test_calls_too_many_are_counted() -> None:
    """Several added calls are said as a number that agrees with the words around it."""
    usual = [Op(D, line=1), Op(D, "broadcast", line=2), Op(D, "all_gather", line=3), Op(D, "broadcast", line=4)]
    extra = [Op(D, "reduce", line=7), Op(D, "reduce", line=8)]
    odd = [*usual, *extra, *usual]
    verdict = diagnose(job({D: [0, 1, 2]}, {0: [*usual, *usual], 1: [*usual, *usual], 2: odd}))
    assert verdict.headline == "rank 2 made 2 extra calls, starting with reduce #5 in step (train.py:7)"
    assert "train.py:7" in verdict.next_steps[0]


@pytest.mark.parametrize(("case", "line"), [("ddp_barrier", "pretrain.py:162"), ("ddp_shift", "finetune.py:146")])
def test_the_odd_call_is_shown_with_its_own_frames(case: str, line: str) -> None:
    """Where the reference has no line (backward), the line of the rank that ran something else is all there is."""
    verdict = recorded(case)
    assert line in shown(verdict)
    assert line in verdict.next_steps[0]


def test_odd_rank_does_not_wait_in_the_others_operation() -> None:
    """At the position of a disagreement each side is said to wait in what it ran."""
    text = shown(recorded("ddp_barrier"))
    assert "ranks 0-10, 12-15 now wait in all_reduce #13" in text
    assert "rank 11 now waits in all_reduce_barrier #13" in text


def test_last_good_is_an_operation_that_all_ran() -> None:
    """A position that every member finished with an operation of its own is not good, it is where they part."""
    last = recorded("type_mismatch").last_completed
    assert last is not None
    assert (last.name, last.seq) == ("_all_gather_base", 15)


# ---- ranks that others wait for --------------------------------------------------------------------------------------


def test_several_kinds_of_culprits_are_each_named() -> None:
    """One rank that was killed and one that sleeps are not said to have ended both, by no part of the report."""
    verdict = recorded("kill_and_sleep")
    here = "is in kill_and_sleep (pretrain.py:356), and"
    assert verdict.headline == f"rank 4 was killed by SIGKILL; rank 7 {here} never launched all_reduce #8"
    assert "gpu-worker-108 was killed by SIGKILL" in verdict.summary
    assert f"gpu-worker-109 {here} never launched all_reduce #8" in verdict.summary
    assert {"policy", "reward"} <= set(shown(verdict).split())
    assert assign(verdict).meaning["X"] == "at fault"
    assert assign(recorded("sigkill")).meaning["X"] == "dead"


def test_several_culprits_of_one_kind_share_a_sentence() -> None:
    """Ranks that did the same are named in one sentence, and others by what holds for all of them."""
    ops = {rank: [Op(D), Op(D, state="started")] for rank in (0, 1)}
    ended = {
        rank: Process(rank=rank, node="n", exit_status=status, ended_at_s=1.0)
        for rank, status in ((2, -9), (3, -9), (0, None), (1, None))
    }
    verdict = diagnose(job({D: [0, 1, 2, 3]}, ops, processes=ended))
    assert verdict.headline == "ranks 2, 3 were killed by SIGKILL"
    ended[3] = replace(ended[3], exit_status=1)
    assert diagnose(job({D: [0, 1, 2, 3]}, ops, processes=ended)).headline == "ranks 2, 3 ended"


def test_summary_counts_those_in_the_operation_that_it_names() -> None:
    """Ranks that wait for the culprit in other operations are counted, but not as if they were in this one."""
    assert recorded("async_late").summary.endswith(
        "; 3 ranks wait for it in _all_gather_base #4 of mesh_dp (2), 4 more in other operations."
    )
    assert recorded("two_culprits").summary.endswith(
        "; 3 ranks wait for rank 1 in all_reduce #4 of replica_a, 3 more in other operations."
    )


def test_batches_are_named_by_what_is_in_them() -> None:
    """Both sides of a ring make batches of one number: their transfers tell them apart."""
    text = shown(recorded("coalesced"))
    assert "rank 3's last operation is batch of send 3->0, recv 3<-2 in default_pg, completed" in text
    assert "rank 0 called batch of send 0->1, recv 0<-3 at" in text
    assert "coalesced #" not in text


def test_end_of_a_healthy_process_is_looked_for_in_its_code() -> None:
    """Nothing on the node ended a process that exited with status 0."""
    step = recorded("clean_exit").next_steps[0]
    assert step.startswith("code: ")
    assert "dmesg" not in step


def test_a_gpu_is_stuck_in_its_own_side_of_a_transfer() -> None:
    """The rank that receives launched a receive, whatever its peer calls it."""
    verdict = recorded("gpu_stage")
    here = "is in sync (train_tools.py:88), and"
    assert verdict.headline == f"rank 1 {here} launched recv 1<-0, but its kernel never started"
    assert "send 0->1" not in " ".join(verdict.next_steps)


def test_the_transfer_that_is_missing_is_not_the_last_one() -> None:
    """Transfers of one pair have one name: the missing one is the next, the last that came is the last good."""
    verdict = recorded("mesh3d_stage")
    assert verdict.headline == "rank 3 is in unpack (pretrain.py:86), and never launched the next recv 3<-1"
    assert "rank 1 called send 1->3" in shown(verdict)
    assert verdict.last_completed is not None
    assert (verdict.last_completed.name, verdict.last_completed.group) == ("recv 3<-1", "mesh_pp (6)")
    assert "Last good  recv 3<-1 of mesh_pp (6), " in render_text(verdict)


def test_first_transfer_of_a_pair_is_not_the_next() -> None:
    """Without an earlier transfer the missing one needs no word to tell it apart, and a collective is the last good."""
    verdict = diagnose(job({D: [0, 1]}, {0: [Op(D), send(D, 1, "started")], 1: [Op(D)]}))
    assert verdict.headline == "rank 1 never launched recv 1<-0 after its call in step (train.py:10)"
    assert verdict.last_completed is not None
    assert verdict.last_completed.name == "all_reduce"


def test_last_good_of_a_pair_is_what_its_receiver_finished() -> None:
    """A send may be done before its receive; and a collective after the last transfer is later than it."""
    transfers = {0: [send(D, 1), send(D, 1), send(D, 1, "started")], 1: [recv(D, 0), recv(D, 0)]}
    verdict = diagnose(job({D: [0, 1]}, {rank: [Op(D), *ops] for rank, ops in transfers.items()}))
    assert verdict.last_completed is not None
    assert verdict.last_completed.name == "recv 1<-0"
    both = {0: [Op(D), *transfers[0]], 1: [Op(D), *transfers[1], recv(D, 0, "started")]}
    verdict = diagnose(job({D: [0, 1]}, both))
    assert (verdict.kind, verdict.last_completed and verdict.last_completed.name) == ("network", "recv 1<-0")
    late = {0: [*transfers[0][:2], Op(D), transfers[0][2]], 1: [*transfers[1], Op(D)]}
    verdict = diagnose(job({D: [0, 1]}, late))
    assert verdict.last_completed is not None
    assert verdict.last_completed.name == "all_reduce"


def test_legend_speaks_of_the_same_operation_as_the_headline() -> None:
    """A victim inside several operations at once is said to wait in the one that the verdict is about."""
    verdict = recorded("async_late")
    assert {v.rank: v.operation for v in verdict.victims if v.rank in (3, 5, 7)} == dict.fromkeys(
        (3, 5, 7), "_all_gather_base #4"
    )
    assert assign(verdict).meaning["W"] == "waiting for rank 1"


def test_message_of_an_error_ends_with_its_first_line() -> None:
    """Hints and links that PyTorch adds to a message are not what happened."""
    verdict = recorded("device_assert")
    error = "torch.AcceleratorError: CUDA error: device-side assert triggered"
    assert verdict.headline == f"rank 2 ended in device_assert (finetune.py:73) with {error}"
    assert "https" not in render_text(verdict)
    assert (
        first_line("loading state_dict failed:\n\tMissing key: a\n\tb") == "loading state_dict failed: Missing key: a"
    )
    assert first_line("\n x" * 200) == "x"
    assert len(first_line("x" * 500)) == 160
    assert first_line("") == ""
    assert first_line("Out of memory. " + "x" * 200) == "Out of memory."


# ---- whose code ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "filename",
    [
        f"{LIB}/queue.py",
        f"{LIB}/multiprocessing/connection.py",
        "/opt/conda/lib/python3.10/selectors.py",
        "/root/.local/share/uv/python/cpython-3.13/lib/python3.13t/socket.py",
        f"{TORCH}/distributed/distributed_c10d.py",
        "/opt/pytorch/torch/nn/modules/module.py",
        "<frozen runpy>",
        "threading.py",
        "multiprocessing/queues.py",
        "torch/utils/data/dataloader.py",
        "",
    ],
)
def test_torch_and_the_standard_library_are_nobodys_own_code(filename: str) -> None:
    """Neither is where a user can change anything, however it was installed or a tool shortened its path."""
    assert not is_own_code(filename)


@pytest.mark.parametrize(
    "filename",
    [
        "/workspace/train.py",
        "/workspace/data/queue.py",
        "train.py",
        f"{LIB}/site-packages/megatron/core/pipeline_parallel/schedules.py",
        "/usr/local/lib/python3.12/dist-packages/transformers/trainer.py",
        "C:\\jobs\\train.py",
    ],
)
def test_installed_packages_may_be_the_users_own_code(filename: str) -> None:
    """Megatron and the like are what such a job runs: their lines are named."""
    assert is_own_code(filename)


def test_next_step_names_the_users_line_and_not_the_queues() -> None:
    """A rank that waits in its data loader is at the line that asked for a batch."""
    assert "/workspace/pretrain.py:80 (next_batch)" in recorded("mesh3d_loader").next_steps[0]


def absent(*stacks: ThreadStack) -> Diagnosis:
    ops = {0: [Op(D), Op(D, state="started")], 1: [Op(D), Op(D, state="started")], 2: [Op(D)]}
    return diagnose(job({D: [0, 1, 2]}, ops, facts=Facts(stacks=stacks)))


def thread(*frames: Frame, main: bool = False) -> ThreadStack:
    return ThreadStack(2, None, "main" if main else "other", frames, Source("stacks/rank_2.txt", ""), main=main)


BACKWARD = (
    Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 869),
    Frame("backward", f"{TORCH}/_tensor.py", 631),
    Frame("step", "/workspace/train.py", 40),
)
HOOK = (Frame("get", f"{LIB}/queue.py", 171), Frame("log_gradient", "/workspace/train.py", 18))
WORKER = (Frame("pump", "/workspace/train.py", 5), Frame("_bootstrap", f"{LIB}/threading.py", 1032))


def test_hook_in_backward_is_where_the_rank_is() -> None:
    """While the main thread waits for autograd, the user's code runs on autograd's thread; helpers run all the time."""
    verdict = absent(thread(*WORKER), thread(*HOOK), thread(*BACKWARD, main=True))
    assert "/workspace/train.py:18 (log_gradient)" in verdict.next_steps[0]
    assert "rank 2's backward thread is not in a collective" in shown(verdict)


@pytest.mark.parametrize("frames", [BACKWARD[2:], BACKWARD])
def test_main_thread_is_shown_where_nothing_else_runs_for_it(frames: tuple[Frame, ...]) -> None:
    """Threads that Python started are not autograd's, and a main thread outside backward speaks for itself."""
    verdict = absent(thread(*WORKER), *[thread(*HOOK)] * (frames != BACKWARD), thread(*frames, main=True))
    assert "/workspace/train.py:40 (step)" in verdict.next_steps[0]


def test_stack_without_own_code_is_named_by_its_innermost_line() -> None:
    """Where a rank stands is worth a line even in a library."""
    verdict = absent(thread(Frame("wait", f"{LIB}/threading.py", 355), Frame("_run", "<frozen runpy>", 9), main=True))
    assert f"{LIB}/threading.py:355 (wait)" in verdict.next_steps[0]


def test_recorded_hook_names_its_line_and_a_short_group() -> None:
    """FSDP calls from backward's thread: no line of PyTorch's is named, and no name of forty digits."""
    verdict = recorded("hsdp_hook")
    text = render_text(verdict)
    assert "/workspace/finetune.py:118 (log_gradient)" in verdict.next_steps[0]
    assert "mesh_shard (fc899875…) (3 ranks)\n" in text
    assert "called at" not in text
    assert verdict.operation is not None
    assert verdict.operation.group == "mesh_shard (fc899875bb02c4530003f190bcc3a468d46833cf)"


def test_no_line_is_named_where_torch_made_the_call() -> None:
    """The line inside PyTorch that every call passes says nothing."""
    assert user_frame((Frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 3068),)) is None
    assert "distributed_c10d" not in render_text(recorded("ddp_barrier"))


def test_hashed_group_names_are_shortened_for_people_only() -> None:
    """Forty digits of a hash become eight on a terminal and in a ticket; the verdict keeps what others match by."""
    name = "fc899875bb02c4530003f190bcc3a468d46833cf"
    verdict = recorded("mesh_absent")
    assert verdict.operation is not None
    group = f"mesh_shard ({name})"
    verdict = replace(
        verdict, summary=f"It hangs in {group}.", operation=replace(verdict.operation, group=group), headline=group
    )
    for text in (render_text(verdict), render_ticket(verdict)):
        assert "mesh_shard (fc899875…)" in text
        assert name not in text
    assert name in render_text(verdict, verbose=True)
    assert brief(verdict) != verdict
    assert brief(recorded("mesh_absent")) == recorded("mesh_absent")
