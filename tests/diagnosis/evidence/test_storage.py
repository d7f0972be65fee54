"""Ranks that are blocked on a file: the file, the mount and its server in the verdict, and nothing made up."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Facts, FileWait, Frame, Process, Source, ThreadStack
from hangscope.report.export import to_json
from kits.small_jobs import Op, job

D = "default_pg"
HERE = Source("nodes/n0/node.json", "ranks")
NFS = FileWait(
    "read", "/data/x.bin", None, True, "/data", "nfs4", "filer:/export", "D", "rpc_wait_bit_killable", for_s=2.1
)
READ = Frame("read_shard", "/workspace/train.py", 72)


def stack(rank: int, **more: object) -> ThreadStack:
    source = Source(f"stacks/rank_{rank}.1.txt", "line 2")
    return replace(ThreadStack(rank, 4700 + rank, "t", (READ,), source, main=True, sample=1), **more)  # type: ignore[arg-type]


def verdict(
    waits: dict[int, FileWait], absent: tuple[int, ...] = (2,), stacks: bool = True, size: int = 4
) -> Diagnosis:
    """Ranks that are `absent` never come to the second all_reduce."""
    ops = {rank: [Op(D)] if rank in absent else [Op(D), Op(D, state="started")] for rank in range(size)}
    processes = {
        rank: Process(rank, "n0", pid=4700 + rank, file_waits=(wait,), state=wait.state, source=HERE)
        for rank, wait in waits.items()
    }
    facts = Facts(stacks=tuple(stack(rank) for rank in absent) if stacks else ())
    return diagnose(job({D: range(size)}, ops, facts=facts, processes=processes))


def said(found: Diagnosis) -> str:
    return "\n".join([*(finding.text for finding in found.why), *found.next_steps])


def test_a_rank_blocked_on_a_server_is_named_with_file_mount_and_line() -> None:
    """The first line has the file, the server, where it is mounted, and the user's line."""
    found = verdict({2: replace(NFS, state="S")})
    blocked = "rank 2 is blocked reading /data/x.bin on nfs4 filer:/export mounted at /data"
    assert found.headline == f"{blocked} in read_shard (train.py:72), and never launched all_reduce #2"
    assert f"{blocked} (state S, in rpc_wait_bit_killable, seen for 2.1s)" in said(found)
    assert found.next_steps[0].startswith("storage: check the server of nfs4 filer:/export mounted at /data")
    assert [culprit.rank for culprit in found.culprits] == [2]
    [culprit] = json.loads(to_json(found))["culprits"]
    assert (culprit["storage"]["path"], culprit["storage"]["source"]) == ("/data/x.bin", "filer:/export")


def test_uninterruptible_sleep_has_its_file() -> None:
    """State D is frozen, as before, and the file that it sleeps on is said."""
    found = verdict({2: NFS})
    assert str(found.kind) == "frozen"
    assert "is blocked reading /data/x.bin on nfs4 filer:/export mounted at /data" in found.headline


def test_without_a_stack_the_file_is_said_all_the_same() -> None:
    """py-spy may not be allowed to look: the kernel still names the file."""
    found = verdict({2: replace(NFS, state="S")}, stacks=False)
    assert found.headline.startswith(
        "rank 2 is blocked reading /data/x.bin on nfs4 filer:/export mounted at /data, and"
    )


def test_several_ranks_in_one_mount_are_said_once() -> None:
    """Three ranks at three files of one export: the mount is what they share, and the verdict leads with it."""
    waits = {rank: replace(NFS, path=f"/data/{rank}.bin", state="S") for rank in (1, 2, 3)}
    found = verdict(waits, absent=(1, 2, 3), size=8)
    assert found.headline.startswith("ranks 1-3 are blocked on nfs4 filer:/export mounted at /data in read_shard")
    assert "3 ranks are blocked on nfs4 filer:/export mounted at /data: ranks 1-3" in said(found)


def test_how_they_sleep_does_not_split_ranks_of_one_mount() -> None:
    """Of FUSE's and NFS's waits some can be interrupted and some cannot: it is one mount all the same."""
    found = verdict({1: replace(NFS, state="S"), 2: NFS}, absent=(1, 2), size=8)
    where = "ranks 1, 2 are blocked on nfs4 filer:/export mounted at /data in read_shard (train.py:72)"
    assert found.headline == f"{where}, and hold up all_reduce #2"
    assert found.summary.endswith("; 6 ranks wait for ranks 1, 2 in all_reduce #2 of default_pg.")


def test_different_mounts_are_not_taken_for_one() -> None:
    """Two servers: each rank's own is shown, and no sentence joins them."""
    other = replace(NFS, source="filer2:/b", mount="/b", path="/b/y", state="S")
    found = verdict({1: replace(NFS, state="S"), 2: other}, absent=(1, 2), size=8)
    assert "are blocked on" not in found.headline
    assert "2 ranks are blocked" not in said(found)


def test_one_look_is_no_block() -> None:
    """A thread that was seen in a read once may be reading: nothing is said about storage."""
    found = verdict({2: replace(NFS, for_s=None, state="S")})
    assert "blocked" not in found.headline + said(found)
    assert "storage" not in said(found)


def test_another_thread_does_not_speak_for_the_rank() -> None:
    """A background writer that is blocked does not hold up a main thread that is elsewhere."""
    found = verdict({2: replace(NFS, main=False, state="S", pid=4702)})
    assert "blocked" not in found.headline


def test_a_worker_process_is_named_as_such() -> None:
    """The data loader's worker is what is blocked, and the rank waits for it."""
    library = "/usr/lib/python3.12/site-packages/torch/utils/data"
    waiting = stack(2, frames=(Frame("_try_get_data", f"{library}/dataloader.py", 1275), Frame("f", "/w/t.py", 1)))
    worker = stack(2, frames=(READ, Frame("_worker_loop", f"{library}/_utils/worker.py", 349)), child=True, pid=99)
    ops = {rank: [Op(D)] if rank == 2 else [Op(D), Op(D, state="started")] for rank in range(3)}
    wait = replace(NFS, pid=99, state="S")
    processes = {2: Process(2, "n0", pid=4702, file_waits=(wait,), state="S", source=HERE)}
    found = diagnose(job({D: range(3)}, ops, facts=Facts(stacks=(waiting, worker)), processes=processes))
    assert found.headline.startswith(
        "rank 2 waits for its worker process, which is blocked reading /data/x.bin on nfs4"
    )
    assert "rank 2's process 99 is blocked reading /data/x.bin" in said(found)


def test_a_disk_is_its_nodes_own() -> None:
    """The same device name on two nodes is two disks; a disk's advice is about the disk."""
    disk = replace(NFS, type="ext4", source="/dev/sda1", mount="/", path="/scratch/y", wait_channel="io_schedule")
    found = verdict({2: disk})
    assert "storage: check ext4 /dev/sda1 mounted at / on n0: dmesg" in said(found)


@pytest.mark.parametrize("wait", [replace(NFS, state="S"), NFS])
def test_nobody_is_accused_where_nobody_waits(wait: FileWait) -> None:
    """All ranks are blocked and no collective is open: the mount is said, and it stays open whether it hangs."""
    ops = {rank: [Op(D)] for rank in range(3)}
    processes = {
        rank: Process(rank, "n0", pid=4700 + rank, file_waits=(wait,), state="S", source=HERE) for rank in range(3)
    }
    found = diagnose(job({D: range(3)}, ops, processes=processes, hung_s=-9.0))
    assert found.culprits == ()
