"""The recorder's small parts: sockets with deadlines, processes, identity, shared directory, sources of evidence."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangscope.recorder.capture import (
    flight_recorder,
    kernel_messages,
    nvidia_smi,
    output_files,
    python_stacks,
    ras_question,
    sys_counters,
)
from hangscope.recorder.launch import rank_sockets
from hangscope.recorder.live import find_ranks
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.live.worker_server import Asker, ask
from hangscope.recorder.process import linux_process, process_facts
from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.job_identity import JobIdentity, identify
from hangscope.recorder.rundir.node_dir import NodeDir

# ---- questions over a unix socket ------------------------------------------------------------------------------------


@contextmanager
def serving(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A unix socket that hands each connection to `answer`."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    open_ones: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_ones.append(connection)
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield str(path)
    finally:
        listener.close()
        for connection in open_ones:
            connection.close()


def http(body: bytes, length: int | None = None) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.close()

    return answer


def test_an_answer_comes_whole(tmp_path: Path) -> None:
    """However long it is."""
    body = os.urandom(3_000_000)
    with serving(tmp_path / "s", http(body)) as path:
        assert ask(path, "x", 5).body == body


def test_silence_ends_at_the_deadline(tmp_path: Path) -> None:
    """A process that accepts and never answers costs the deadline and no more, and is told from one that is gone."""
    with serving(tmp_path / "s", lambda connection: time.sleep(30)) as path:
        begun = time.monotonic()
        answer = ask(path, "x", 0.3)
        assert time.monotonic() - begun < 1
        assert (answer.ok, answer.late) == (False, True)
    gone = ask(str(tmp_path / "none"), "x", 1)
    assert (gone.ok, gone.late) == (False, False)


def test_an_answer_that_was_cut_is_no_answer(tmp_path: Path) -> None:
    """A process that dies while it answers leaves half a dump."""
    with serving(tmp_path / "s", http(b"half", length=1000)) as path:
        assert ask(path, "x", 2).error == "the answer was cut at 4 of 1000 bytes"


def test_a_question_is_not_asked_again_while_it_is_open(tmp_path: Path) -> None:
    """Each open question holds a thread of the rank's server: there is one a key, and its answer may come late."""
    release = threading.Event()
    asked = []

    def slow(connection: socket.socket) -> None:
        asked.append(1)
        release.wait(10)
        http(b"late")(connection)

    with serving(tmp_path / "s", slow) as path:
        asker = Asker()
        for _ in range(3):
            asker.ask("key", path, "x")
            assert asker.wait(0.1) == []
        assert asker.open_for("key") is not None
        release.set()
        time.sleep(0.2)
        [(key, answer)] = asker.wait(0.5)
        assert (key, answer.body, len(asked)) == ("key", b"late", 1)
        asker.close()


# ---- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "status"), [("exit 3", 3), ("kill -9 $$", -9), ("exit 0", 0)])
def test_how_somebody_elses_child_ended_is_known(tmp_path: Path, ending: str, status: int) -> None:
    """We are not the parent of a rank under torchrun; its end is noticed at once, with its status."""
    os.mkfifo(tmp_path / "order")
    launcher = subprocess.Popen(
        ["sh", "-c", f"sh -c 'read line <order; {ending}' & echo $!; wait $!; sleep 0.3"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert launcher.stdout is not None
        watched = linux_process.ProcessHandle(int(launcher.stdout.readline()))
        assert (watched.ended(), watched.status()) == (False, None)
        (tmp_path / "order").write_text("go\n")
        assert watched.fd is not None
        select.select([watched.fd], [], [], 5)
        assert (watched.ended(), watched.status()) == (True, status)
        watched.close()
    finally:
        launcher.kill()
        launcher.communicate()


def test_a_processs_family_and_state() -> None:
    """Descendants come with their depth, a stopped process shows as T, and a reused pid is not mistaken."""
    parent = subprocess.Popen(["sh", "-c", "sleep 30 & wait"], env={**os.environ, "RANK": "7"}, start_new_session=True)
    try:
        for _ in range(50):
            found = list(linux_process.descendants(parent.pid))
            if found:
                break
            time.sleep(0.05)
        [(child, depth)] = found
        assert depth == 1
        os.kill(child, signal.SIGSTOP)
        time.sleep(0.1)
        told = linux_process.stat(child)
        assert told is not None
        assert (told.state, told.parent) == ("T", parent.pid)
        assert linux_process.environment(parent.pid)["RANK"] == "7"
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


# ---- who we are ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "job", "attempt"),
    [
        ({"SLURM_JOB_ID": "48121", "SLURM_RESTART_COUNT": "2"}, "48121", "2"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, "7_3", "0"),
        ({"TORCHELASTIC_RUN_ID": "rdzv", "TORCHELASTIC_RESTART_COUNT": "1"}, "rdzv", "1"),
        ({"KUBERNETES_SERVICE_HOST": "x", "HOSTNAME": "llama-70b-worker-3"}, "llama-70b", "0"),
        ({"KUBERNETES_SERVICE_HOST": "x", "HOSTNAME": "llama-70b-4-x8k2p"}, "llama-70b", "0"),
        ({"KUBERNETES_SERVICE_HOST": "x", "HOSTNAME": "p", "JOB_NAME": "mine"}, "mine", "0"),
        ({"HANGSCOPE_JOB": "a", "HANGSCOPE_ATTEMPT": "b", "SLURM_JOB_ID": "1"}, "a", "b"),
    ],
)
def test_the_schedulers_names_are_used(environ: dict[str, str], job: str, attempt: str) -> None:
    """Slurm, torchelastic and Kubernetes say which attempt of which job this is."""
    found = identify({**environ, "HANGSCOPE_NODE": "n"})
    assert (found.job, found.attempt, found.node, found.made) == (job, attempt, "n", False)


def test_without_a_scheduler_a_name_is_made() -> None:
    """torchrun's own "none" is no name."""
    assert identify({"TORCHELASTIC_RUN_ID": "none"}).made


# ---- the shared directory --------------------------------------------------------------------------------------------


def test_nodes_of_one_job_join_and_others_do_not(tmp_path: Path) -> None:
    """An unnamed job takes the name of the node that came first; another job gets a directory of its own."""
    root, first = run_directory.claim(tmp_path / "d", JobIdentity("made-1", "0", "a", made=True))
    again, second = run_directory.claim(tmp_path / "d", JobIdentity("made-2", "0", "b", made=True))
    assert (again, second.job) == (root, "made-1")
    other, _ = run_directory.claim(tmp_path / "d", JobIdentity("real", "0", "b"))
    assert other == tmp_path / "d.2"
    assert first.job == "made-1"


def test_two_agents_on_one_host_get_two_folders(tmp_path: Path) -> None:
    """One `run` per rank is allowed too."""
    assert [run_directory.claim_node(tmp_path, "host").name for _ in range(3)] == ["host", "host-2", "host-3"]


def test_only_one_agent_marks_a_stall(tmp_path: Path) -> None:
    """The first one's reason is everybody's."""
    assert run_directory.mark(tmp_path, node="a", reason="stall", detail="x")
    assert not run_directory.mark(tmp_path, node="b", reason="watchdog", detail="y")
    marked = run_directory.marked(tmp_path)
    assert marked is not None
    assert (marked.by, marked.reason, marked.detail) == ("a", "stall", "x")


def write_status(root: Path, name: str, ranks: list[int], *, age: float = 0.0, **fields: object) -> Path:
    folder = root / "nodes" / name
    folder.mkdir(parents=True)
    value = {"node": name, "world_size": 4, "live": [{"rank": rank} for rank in ranks], "ended": None, **fields}
    (folder / run_directory.STATUS).write_text(json.dumps(value))
    then = time.time() - age
    os.utime(folder / run_directory.STATUS, (then, then))
    return folder


def test_the_lowest_rank_that_lives_leads(tmp_path: Path) -> None:
    """Rank 0's agent is silent: the next one diagnoses."""
    write_status(tmp_path, "a", [0, 1], age=100)
    own = write_status(tmp_path, "b", [2, 3])
    agents = run_directory.peers(tmp_path, own)
    assert run_directory.leader(agents) == own
    assert run_directory.sees_all(agents)


def test_a_part_of_the_job_is_known_as_a_part(tmp_path: Path) -> None:
    """Four ranks in the world and two in this directory: the others are elsewhere."""
    own = write_status(tmp_path, "a", [0, 1], local_world_size=2)
    assert not run_directory.sees_all(run_directory.peers(tmp_path, own))


def test_the_sockets_directory_is_private_and_short(tmp_path: Path) -> None:
    """Only the user can enter it, and a socket's path fits into what the kernel allows, whatever TMPDIR says."""
    made = rank_sockets.make({"TMPDIR": str(tmp_path / ("long" * 40))})
    try:
        assert made.stat().st_mode & 0o777 == 0o700
        assert len(str(made / "4194304.sock")) < 108
    finally:
        rank_sockets.remove(made)
    assert not made.exists()


def test_of_processes_that_claim_a_rank_the_launchers_child_is_it(tmp_path: Path) -> None:
    """A rank's helper processes inherit RANK."""
    sleeper = (sys.executable, "-c", "import time; print(1, flush=True); time.sleep(30)")
    code = f"import subprocess, time; p = subprocess.Popen({sleeper!r}); print(p.pid, flush=True); time.sleep(30)"
    rank = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert rank.stdout is not None
        helper = int(rank.stdout.readline())
        claims = [find_ranks.RankProcess(helper, 3), find_ranks.RankProcess(rank.pid, 3)]
        assert [process.pid for process in find_ranks.one_per_rank(claims)] == [rank.pid]
    finally:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()
        assert rank.stdout is not None
        rank.stdout.close()


# ---- sources ---------------------------------------------------------------------------------------------------------


def test_network_counters_are_keyed_by_device_and_port(tmp_path: Path) -> None:
    """InfiniBand ports with both kinds of counters, and network interfaces without a port."""
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    for folder, name, value in (
        (port / "counters", "link_downed", "2"),
        (port / "hw_counters", "out_of_sequence", "17"),
        (tmp_path / "net" / "eth0" / "statistics", "rx_errors", "5"),
        (tmp_path / "net" / "eth0", "carrier_changes", "3"),
        (tmp_path / "net" / "lo" / "statistics", "rx_errors", "9"),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{value}\n")
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    assert sys_counters.snapshot(tmp_path)["counters"] == {
        "mlx5_0/1/link_downed": 2,
        "mlx5_0/1/out_of_sequence": 17,
        "eth0//rx_errors": 5,
        "eth0//carrier_changes": 3,
    }
    [nic] = sys_counters.ports(tmp_path)
    assert (nic["name"], nic["port"], nic["state"], nic["rate"]) == ("mlx5_0", 1, "ACTIVE", "400 Gb/sec (4X NDR)")


def ras_server(replies: dict[bytes, bytes], final: bytes) -> tuple[int, threading.Thread]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as stream:
            for line in stream:
                if line.upper().startswith(b"VERBOSE STATUS"):
                    stream.write(final)
                    break
                stream.write(next((reply for start, reply in replies.items() if line.startswith(start)), b"OK\n"))
                stream.flush()
        listener.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return listener.getsockname()[1], thread


@pytest.mark.parametrize(("format_reply", "form"), [(b"OK\n", "json"), (b"ERROR: Unknown command\n", "text")])
def test_ras_is_asked_for_json_and_older_ones_for_text(format_reply: bytes, form: str) -> None:
    """NCCL answers in JSON from 2.28.7 on; before, the question for it is an unknown command."""
    replies = {b"CLIENT PROTOCOL": b"SERVER PROTOCOL 2\n", b"SET FORMAT": format_reply}
    port, _ = ras_server(replies, b"the report")
    assert ras_question.listening(port)
    assert ras_question.status(("127.0.0.1", port), 5) == (b"the report", form, "")
    assert ras_question.address("localhost:27428") == ("localhost", 27428)
    assert ras_question.address(None) == ("localhost", 28028)


def test_a_port_that_nobody_listens_on_is_not_connected_to() -> None:
    """It is looked up in the kernel's table."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert not ras_question.listening(bound.getsockname()[1])


def test_kernel_messages_have_a_time_or_a_reason() -> None:
    """Either lines that start with a time of day, or why they cannot be read."""
    text, why = kernel_messages.messages(0.0)
    assert (text is None) == bool(why)
    if text:
        assert text.startswith("20")


def test_gpus_are_found_by_order_among_the_visible() -> None:
    """CUDA_VISIBLE_DEVICES by index and by UUID; nvidia-smi's long PCI domain becomes the kernel's."""
    gpus = [{"index": n, "uuid": f"GPU-{n}{n}", "pci": nvidia_smi.pci(f"00000000:0{n}:00.0")} for n in range(4)]
    assert nvidia_smi.by_order(gpus, None, 2) == "0000:02:00.0"
    assert nvidia_smi.by_order(gpus, "3,1", 1) == "0000:01:00.0"
    assert nvidia_smi.by_order(gpus, "GPU-33", 0) == "0000:03:00.0"
    assert nvidia_smi.by_order(gpus, None, None) is None


def test_an_unused_recorder_is_not_saved() -> None:
    """A CUDA build answers for NCCL in a job that uses Gloo only."""
    assert flight_recorder.is_empty(b'{"version":"2.10","pg_config":{},"pg_status":{}}')
    assert not flight_recorder.is_empty(b'{"version":"2.10","pg_status":{"0":{}}}')


def test_output_that_went_to_a_file_is_found(tmp_path: Path) -> None:
    """torchrun --redirects: the rank's own file is copied."""
    with (tmp_path / "stdout.log").open("wb") as target:
        child = subprocess.Popen(
            [sys.executable, "-c", "print('x', flush=True); input()"], stdout=target, stdin=subprocess.PIPE
        )
    try:
        for _ in range(50):
            if (tmp_path / "stdout.log").stat().st_size:
                break
            time.sleep(0.1)
        node_dir = NodeDir(tmp_path, tmp_path / "n")
        files = process_facts.redirected_output(child.pid)
        assert files[0] == tmp_path / "stdout.log"
        output_files.save_redirected(node_dir, "rank_4", files[:1])
        assert (tmp_path / "n" / "logs" / "rank_4.redirected.log").read_text() == "x\n"
    finally:
        child.communicate()


def test_what_an_earlier_attempt_left_is_not_evidence_of_this_one(tmp_path: Path) -> None:
    """Dumps from before the attempt began, and NCCL's logs of the processes before, stay where they are."""
    place = tmp_path / "first"
    place.mkdir()
    for name in ("dump_0", "dump_1", "nccl.n1.70.log", "nccl.n1.90.log"):
        (place / name).write_text("x")
    os.utime(place / "dump_0", (100.0, 100.0))
    environ = {"TORCH_FR_DUMP_TEMP_FILE": str(place / "dump_"), "NCCL_DEBUG_FILE": str(place / "nccl.%h.%p.log")}
    node_dir = NodeDir(tmp_path / "second", tmp_path / "second" / "n")
    output_files.save_elsewhere(node_dir, environ, [0, 1], "n1", since=(200.0, [70]))
    saved = {path.name for path in (tmp_path / "second").rglob("*") if path.is_file()}
    assert saved == {"dump_1", "nccl.n1.90.log"}


def test_a_full_disk_is_a_gap(tmp_path: Path) -> None:
    """A file that cannot be written is named with the reason, and nothing is raised."""
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "stacks").write_text("a file where a folder should be")
    node_dir = NodeDir(tmp_path, tmp_path / "n")
    assert not node_dir.write("stacks/rank_1.1.txt", "x", rank=1)
    [gap] = node_dir.gaps
    assert (gap["what"], gap["rank"]) == ("stacks/rank_1.1.txt", 1)


def test_stacks_of_a_process_without_a_companion(tmp_path: Path) -> None:
    """py-spy reads them from outside; where it may not, the gap says so."""
    child = subprocess.Popen([sys.executable, "-c", "def waits():\n    input()\nwaits()"], stdin=subprocess.PIPE)
    try:
        time.sleep(1)
        node_dir = NodeDir(tmp_path, tmp_path / "n")
        assert python_stacks.sample(node_dir, find_ranks.RankProcess(child.pid, 2), 1) is None
        if node_dir.gaps:
            assert "py-spy" in node_dir.gaps[0]["why"]
        else:
            assert "waits" in (tmp_path / "n" / "stacks" / "rank_2.1.txt").read_text()
    finally:
        child.communicate()


def test_the_kernels_call_of_a_process_is_named(tmp_path: Path) -> None:
    """A process that waits for a FIFO to be opened is in openat; one that reads has the file beside it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    opens = subprocess.Popen([sys.executable, "-c", f"open({str(fifo)!r})"])
    reads = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        for child, call, about in ((opens, "openat", None), (reads, "read", "pipe:")):
            end = time.monotonic() + 20
            while (found := linux_process.system_call(child.pid))[0] != call and time.monotonic() < end:
                time.sleep(0.05)
            if found == (None, None):
                pytest.skip("the kernel does not tell here")
            assert found[0] == call
            assert about is None or (found[1] or "").startswith(about)
    finally:
        for child in (opens, reads):
            child.kill()
            child.wait()


def test_a_dear_poll_makes_no_threshold_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much a poll costs, a threshold of seconds is not missed, nor is the next attempt."""
    clock = iter(range(1000))
    monkeypatch.setattr("hangscope.recorder.live.polling.time.thread_time", lambda: float(next(clock)))
    rank = subprocess.Popen(["sleep", "30"])
    try:
        for stall_after, expected in ((3.0, 1.0), (10.0, 2.0), (None, 5.0)):
            polling = Polling(tmp_path, stall_after)
            polling.ranks[0] = WatchedRank.of(RankProcess(rank.pid, 0))
            polling.turn(None)
            assert polling.interval == expected
    finally:
        rank.kill()
        rank.wait()
    polling.note_ends()
    assert polling.interval == 1.0
