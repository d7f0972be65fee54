"""Real small programs that wait for each other, and what the kernel's books say of them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hangscope.sources.process_waits.capture import take
from hangscope.sources.process_waits.chains import Chain, ProcessGraph
from hangscope.sources.process_waits.schema import NodeWaits, SeenProcess, Target, Wait

PAUSE_S = 0.3
PROGRAMS = Path(__file__).parents[2] / "live_scripts" / "programs.py"
pytestmark = pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="this kernel does not tell calls")


@contextmanager
def programs(folder: Path, *codes: str) -> Iterator[list[int]]:
    """These programs, each started when the one before has said that it is ready; killed at the end."""
    started: list[subprocess.Popen[str]] = []
    try:
        for code in codes:
            text = f"import os, signal, socket, subprocess, sys, time\nF = {str(folder)!r}\n{textwrap.dedent(code)}"
            one = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
            started.append(one)
            assert one.stdout is not None
            assert one.stdout.readline().strip() == "ready", code
        time.sleep(0.3)
        yield [one.pid for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
            if one.stdout is not None:
                one.stdout.close()


def looked(*pids: int) -> NodeWaits:
    return take(pids, {pids[0]: 0}, time.sleep, PAUSE_S)


def chain(*pids: int) -> Chain:
    found = ProcessGraph({"node": looked(*pids)}).follow(("node", pids[0]))
    assert found is not None
    return found


def pids_of(found: Chain) -> list[int]:
    return [step.process.pid for step in found.steps if step.process is not None]


READY = "print('ready', flush=True)\n"
SERVER = f"""
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(5)
open(F + "/port", "w").write(str(s.getsockname()[1]))
{READY}
c, _ = s.accept()
"""
CLIENT = f"""
c = socket.create_connection(("127.0.0.1", int(open(F + "/port").read())))
{READY}
c.recv(1)
"""


def test_a_client_waits_for_the_server_that_is_stopped(tmp_path: Path) -> None:
    """Over an accepted TCP connection the process at its other end is named by the socket's inode, and is stopped."""
    with programs(tmp_path, SERVER + "os.kill(os.getpid(), signal.SIGSTOP)", CLIENT) as (server, client):
        found = chain(client)
        assert (pids_of(found), found.end, found.sure) == ([client, server], "stopped", True)
        assert found.steps[0].target is not None and found.steps[0].target.sure == "inode"


def test_a_connection_that_was_never_accepted_leads_to_who_listens(tmp_path: Path) -> None:
    """A server that never accepts is known by its port alone, which is said as a doubt."""
    server_code = SERVER.replace("c, _ = s.accept()", "time.sleep(600)")
    with programs(tmp_path, server_code, CLIENT) as (server, client):
        found = chain(client)
        assert (pids_of(found), found.sure) == ([client, server], False)
        assert found.why_not


def test_two_programs_that_wait_for_each_other_are_a_circle(tmp_path: Path) -> None:
    """Two services, each in a call to the other, are a cycle with both edges, and both are named."""
    both = f"""
    me, other = sys.argv[1:] if len(sys.argv) > 1 else (ME, OTHER)
    s = socket.socket(socket.AF_UNIX); s.bind(F + "/" + me); s.listen(5)
    {READY.strip()}
    while not os.path.exists(F + "/" + other): time.sleep(0.05)
    c = socket.socket(socket.AF_UNIX); c.connect(F + "/" + other)
    d, _ = s.accept()
    c.recv(1)
    """
    one = "ME, OTHER = 'a', 'b'\n" + textwrap.dedent(both)
    other = "ME, OTHER = 'b', 'a'\n" + textwrap.dedent(both)
    with programs(tmp_path, one, other) as (first, second):
        found = chain(first, second)
        assert (sorted(pids_of(found)), found.end, found.sure) == (sorted([first, second]), "cycle", True)


def test_a_chain_goes_through_several_programs(tmp_path: Path) -> None:
    """Trainer → service → its child, which is stopped: every step is there, and the last is what holds it up."""
    service = SERVER + "subprocess.run(['sh', '-c', 'kill -STOP $$; true'])"
    with programs(tmp_path, service, CLIENT) as (server, client):
        found = chain(client)
        assert pids_of(found)[:2] == [client, server]
        assert (len(found.steps), found.end, found.sure) == (3, "stopped", True)
        kinds = [step.target.kind for step in found.steps if step.target is not None]
        assert kinds[0] == "tcp" and kinds[1] in ("child", "pipe")


def test_a_reader_of_a_pipe_waits_for_who_can_write(tmp_path: Path) -> None:
    """Of a pipe's holders those count that have the writing end open, and not the reader itself."""
    code = f"""
    r, w = os.pipe()
    if os.fork() == 0:
        os.close(r); os.kill(os.getpid(), signal.SIGSTOP); os._exit(0)
    os.close(w)
    {READY.strip()}
    os.read(r, 1)
    """
    with programs(tmp_path, code) as (reader,):
        found = chain(reader)
        assert (found.end, found.steps[0].target.kind, found.sure) == ("stopped", "pipe", True)  # type: ignore[union-attr]


def test_a_fifo_that_nobody_opens_for_writing_has_no_other_end(tmp_path: Path) -> None:
    """Opening a FIFO whose other end nobody opens ends at the FIFO's name."""
    os.mkfifo(tmp_path / "fifo")
    with programs(tmp_path, READY + "open(F + '/fifo').read()") as (reader,):
        found = chain(reader)
        assert found.end == "dead"
        assert found.last.target is not None
        assert (found.last.target.kind, found.last.target.what) == ("fifo", str(tmp_path / "fifo"))


@pytest.mark.parametrize("how", ["flock", "lockf"])
def test_a_lock_leads_to_who_holds_it(tmp_path: Path, how: str) -> None:
    """A compile cache's lock that a stopped process holds is traced to that process by the kernel's list of locks."""
    holder = f"import fcntl\nf = open(F + '/lock', 'w'); fcntl.{how}(f, fcntl.LOCK_EX)\n{READY}"
    waiter = f"import fcntl\nf = open(F + '/lock', 'w')\n{READY}fcntl.{how}(f, fcntl.LOCK_EX)"
    with programs(tmp_path, holder + "os.kill(os.getpid(), signal.SIGSTOP)", waiter) as (first, second):
        found = chain(second)
        assert (pids_of(found), found.end, found.sure) == ([second, first], "stopped", True)


def test_a_server_that_waits_for_work_is_idle_and_held_up_by_nobody(tmp_path: Path) -> None:
    """A client whose server owes it no answer ends at an idle server; the server has no chain."""
    server = (
        SERVER + "import select\np = select.epoll(); p.register(s.fileno(), 1); p.register(c.fileno(), 1); p.poll()"
    )
    with programs(tmp_path, server, CLIENT) as (first, second):
        looks = looked(second, first)
        graph = ProcessGraph({"node": looks})
        found = graph.follow(("node", second))
        assert found is not None
        assert (pids_of(found), found.end) == ([second, first], "idle")
        assert graph.follow(("node", first)) is None


@pytest.mark.parametrize("family", ["AF_UNIX", "AF_INET"])
def test_both_ends_that_read_are_no_circle(tmp_path: Path, family: str) -> None:
    """A server that waits for the next request on the same connection is idle, over any kind of socket."""
    code = f"""
    one, other = socket.socketpair() if {family == "AF_UNIX"} else (None, None)
    if one is None:
        s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(1)
        one = socket.create_connection(s.getsockname()); other, _ = s.accept(); s.close()
    if os.fork() == 0:
        one.close(); other.recv(1); os._exit(0)
    other.close()
    {READY.strip()}
    one.recv(1)
    """
    with programs(tmp_path, code) as (client,):
        found = chain(client)
        assert (len(found.steps), found.end) == (2, "idle")


def test_a_process_at_work_is_what_it_is(tmp_path: Path) -> None:
    """A server that computes is at work: the chain ends there, as something that moves."""
    with programs(tmp_path, SERVER + "while True: pass", CLIENT) as (server, client):
        found = ProcessGraph({"node": take([client], {}, time.sleep, 1.0)}).follow(("node", client))
        assert found is not None
        assert (pids_of(found), found.end) == ([client, server], "works")


def test_an_address_that_no_process_owns_is_outside(tmp_path: Path) -> None:
    """The other end of a connection to another machine is said as its address, and no process is named."""
    target = Target("tcp", "10.0.0.9:9000", local="10.0.0.1:41000", peer="10.0.0.9:9000", state="ESTABLISHED")
    with programs(tmp_path, SERVER + "time.sleep(600)", CLIENT) as (_, client):
        looks = looked(client)
    wait = Wait(client, client, "python", "recvfrom", (target,), main=True)
    alone = NodeWaits(tuple(one for one in looks.processes if one.pid == client), (wait,))
    found = ProcessGraph({"node": alone}).follow(("node", client))
    assert found is not None
    assert (found.end, found.last.target) == ("outside", target)


def test_both_ends_of_its_own_lead_to_no_other_program(tmp_path: Path) -> None:
    """An event loop that nobody wakes waits for its own pair of sockets: that says nothing of another program."""
    loop = f"import asyncio\n{READY}asyncio.new_event_loop().run_forever()"
    with programs(tmp_path, loop) as (pid,):
        time.sleep(0.2)
        looks = looked(pid)
    assert any(target.kind == "unix" for wait in looks.waits for target in wait.targets)
    assert ProcessGraph({"node": looks}).follow(("node", pid)) is None


def test_connections_between_nodes_are_joined_by_their_addresses(tmp_path: Path) -> None:
    """What one node saved of its half of a connection finds the process with the other half on another node."""
    with programs(tmp_path, SERVER + "os.kill(os.getpid(), signal.SIGSTOP)", CLIENT) as (server, client):
        both = looked(client)
    waits = tuple(
        replace(wait, targets=tuple(replace(target, pids=(), sure="") for target in wait.targets))
        for wait in both.waits
    )
    near = NodeWaits(tuple(one for one in both.processes if one.pid == client), waits)
    far = NodeWaits(tuple(one for one in both.processes if one.pid == server))
    found = ProcessGraph({"a": near, "b": far}).follow(("a", client))
    assert found is not None
    assert ([step.node for step in found.steps], found.end) == (["a", "b"], "stopped")


def test_a_semaphore_of_a_killed_process_is_left_behind(tmp_path: Path) -> None:
    """A System V semaphore that was last changed by a process that is gone has nobody who could raise it."""
    code = f"""
    import ctypes
    libc = ctypes.CDLL(None)
    number = libc.semget(0, 1, 0o1600)
    class Op(ctypes.Structure): _fields_ = [("n", ctypes.c_ushort), ("op", ctypes.c_short), ("flag", ctypes.c_short)]
    if os.fork() == 0:
        libc.semop(number, ctypes.byref(Op(0, 1, 0)), 1); libc.semop(number, ctypes.byref(Op(0, -1, 0)), 1); os._exit(0)
    os.wait()
    open(F + "/sem", "w").write(str(number))
    {READY.strip()}
    libc.semop(number, ctypes.byref(Op(0, -1, 0)), 1)
    """
    try:
        with programs(tmp_path, code) as (waiter,):
            found = chain(waiter)
            assert (found.end, found.last.target.kind) == ("dead", "semaphore")  # type: ignore[union-attr]
    finally:
        subprocess.run(["ipcrm", "-s", (tmp_path / "sem").read_text()], check=False)


def test_a_connection_in_a_stopped_servers_queue_leads_to_it(tmp_path: Path) -> None:
    """The kernel lists what waits in the queue of a listening Unix socket: its server is named without a doubt."""
    server = f"""
    s = socket.socket(socket.AF_UNIX); s.bind(F + "/sock"); s.listen(5)
    {READY.strip()}
    os.kill(os.getpid(), signal.SIGSTOP)
    """
    client = f"c = socket.socket(socket.AF_UNIX); c.connect(F + '/sock')\n{READY}c.recv(1)"
    with programs(tmp_path, server, client) as (first, second):
        found = chain(second)
        assert (pids_of(found), found.end, found.sure) == ([second, first], "stopped", True)


def test_a_forked_child_with_its_parents_lock_waits_for_ever(tmp_path: Path) -> None:
    """A process of one thread that waits for a lock in its own memory: nobody is there who could release it."""
    code = f"""
    import threading
    lock = threading.Lock(); lock.acquire()
    child = os.fork()
    if child == 0:
        lock.acquire()
    {READY.strip()}
    os.waitpid(child, 0)
    """
    with programs(tmp_path, code) as (parent,):
        found = chain(parent)
        assert (len(found.steps), found.end, found.sure) == (2, "alone", True)
        assert found.last.process is not None
        os.kill(found.last.process.pid, 9)


def test_datagrams_lead_to_the_process_at_that_address(tmp_path: Path) -> None:
    """A name server has no connections: it is known by its address, which is a doubt."""
    server = f"""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("127.0.0.1", 0))
    open(F + "/port", "w").write(str(s.getsockname()[1]))
    {READY.strip()}
    os.kill(os.getpid(), signal.SIGSTOP)
    """
    client = f"""
    c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); c.connect(("127.0.0.1", int(open(F + "/port").read())))
    c.send(b"?")
    {READY.strip()}
    c.recv(1)
    """
    with programs(tmp_path, server, client) as (first, second):
        found = chain(second)
        assert (pids_of(found), found.end, found.sure) == ([second, first], "stopped", False)


def test_a_thread_with_a_connection_says_nothing_of_a_main_thread_that_sleeps(tmp_path: Path) -> None:
    """A heartbeat's connection to a stopped server is no wait of the program that sleeps beside it."""
    beside = f"""
    import threading
    c = socket.create_connection(("127.0.0.1", int(open(F + "/port").read())))
    threading.Thread(target=lambda: c.recv(1), daemon=True).start()
    {READY.strip()}
    time.sleep(600)
    """
    with programs(tmp_path, SERVER + "os.kill(os.getpid(), signal.SIGSTOP)", beside) as (_, client):
        assert ProcessGraph({"node": looked(client)}).follow(("node", client)) is None


def test_a_main_thread_that_waits_for_another_one_is_followed_with_a_doubt(tmp_path: Path) -> None:
    """A library with a thread for its connections: the wait leads on, and it is said that a thread lies between."""
    beside = f"""
    import threading
    c = socket.create_connection(("127.0.0.1", int(open(F + "/port").read())))
    one = threading.Thread(target=lambda: c.recv(1), daemon=True); one.start()
    {READY.strip()}
    one.join()
    """
    with programs(tmp_path, SERVER + "os.kill(os.getpid(), signal.SIGSTOP)", beside) as (server, client):
        found = chain(client)
        assert (pids_of(found), found.end, found.sure) == ([client, server], "stopped", False)
        assert any("a thread of its own" in why for why in found.why_not)


def test_a_loggers_thread_is_not_what_a_collective_waits_for() -> None:
    """The main thread is in code that names no library with threads: only Gloo's own thread can be behind its wait."""
    over = Target("tcp", "127.0.0.1:9", (2,), "inode", local="127.0.0.1:8", peer="127.0.0.1:9")
    main = Wait(
        1, 1, "python", "futex", (Target("futex", "a thread of its own"),), main=True, place="step (train.py:9)"
    )
    rank = SeenProcess(1, 0, "python", "python train.py", "S", 3, 0.0, rank=0)
    other = SeenProcess(2, 0, "logger", "logger", "T", 1, 0.0)
    for name, leads in (("python", False), ("gloo_tcp_loop", True)):
        waits = (main, Wait(1, 5, name, "epoll_wait", (over,), any_of=True))
        found = ProcessGraph({"node": NodeWaits((rank, other), waits)}).follow(("node", 1))
        assert (found is not None) is leads


def test_who_only_keeps_a_connection_to_the_trainer_is_no_part_of_a_circle(tmp_path: Path) -> None:
    """A server that waits for work, with an idle connection back to its client beside it, is idle and no deadlock."""
    server = (
        SERVER
        + """
import selectors, threading
back = socket.create_connection(("127.0.0.1", int(open(F + "/back").read())))
def loop():
    one = selectors.DefaultSelector(); one.register(back, 1); one.select()
threading.Thread(target=loop, daemon=True).start()
open(F + "/there", "w").close()
import queue
threading.Thread(target=queue.Queue().get, daemon=True).start()
two = selectors.DefaultSelector(); two.register(s, 1); two.register(c, 1); two.select()
"""
    )
    client = f"""
    l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(1)
    open(F + "/back", "w").write(str(l.getsockname()[1]))
    c = socket.create_connection(("127.0.0.1", int(open(F + "/port").read())))
    kept, _ = l.accept()
    {READY.strip()}
    c.recv(1)
    """
    with programs(tmp_path, server, client) as (first, second):
        found = chain(second)
        assert (pids_of(found), found.end) == ([second, first], "idle")


@pytest.mark.parametrize("family", ["AF_INET", "AF_UNIX"])
def test_a_server_does_not_wait_for_its_other_clients(tmp_path: Path, family: str) -> None:
    """With a thread for each client, that of an idle one waits for work: the busy one's wait ends at the server."""
    address = "('127.0.0.1', 0)" if family == "AF_INET" else "F + '/sock'"
    server = f"""
    import threading
    s = socket.socket(socket.{family}); s.bind({address}); s.listen(5)
    open(F + "/at", "w").write(repr(s.getsockname()))
    def serve(c):
        while c.recv(1): time.sleep(600)
    def loop():
        while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
    {READY.strip()}
    loop()
    """
    client = f"c = socket.socket(socket.{family}); c.connect(eval(open(F + '/at').read()))\n"
    idle = client + READY + "time.sleep(600)"
    asks = client + READY + "c.send(b'?'); c.recv(1)"
    with programs(tmp_path, server, idle, asks) as (first, other, third):
        graph = ProcessGraph({"node": looked(third, other)})
        found = graph.follow(("node", third))
        assert found is not None
        assert (pids_of(found), found.end) == ([third, first], "sleeps")


def test_where_a_python_program_sleeps_is_read_in_its_memory(tmp_path: Path) -> None:
    """The function of the program's own, and not the library's; of a command line's text there is no file."""
    (tmp_path / "reward.py").write_text("import time\ndef score():\n    time.sleep(600)\nscore()\n")
    one = subprocess.Popen([sys.executable, str(tmp_path / "reward.py")])
    try:
        time.sleep(0.5)
        (wait,) = (each for each in looked(one.pid).waits if each.pid == one.pid)
        assert (wait.place, wait.says, wait.idles) == ("score (reward.py:3)", "", False)
    finally:
        one.kill()
        one.wait()


def test_of_a_request_only_its_host_and_path_are_read(tmp_path: Path) -> None:
    """What stands before the host, the query and the body stay in the process, whatever they hold."""
    library = tmp_path / "site-packages" / "requests"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("from .sessions import request\n")
    (library / "sessions.py").write_text(
        "import time\ndef request(method, url, data=None, headers=None):\n    time.sleep(600)\n"
    )
    (tmp_path / "train.py").write_text(
        f"import sys; sys.path.insert(0, {str(library.parent)!r})\nimport requests\ndef ask():\n"
        "    requests.request('POST', 'http://me:s3cret@reward:8000/score?token=s3cret', data='s3cret',"
        " headers={'Authorization': 's3cret'})\nask()\n"
    )
    one = subprocess.Popen([sys.executable, str(tmp_path / "train.py")])
    try:
        time.sleep(0.5)
        seen = looked(one.pid)
        (wait,) = (each for each in seen.waits if each.pid == one.pid)
        assert (wait.place, wait.says) == ("ask (train.py:4)", "POST reward:8000/score")
        assert "s3cret" not in str(seen)
    finally:
        one.kill()
        one.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_file_systems_server_is_named(tmp_path: Path) -> None:
    """A call on a FUSE file system leads to the process that serves it, by the number of its connection."""
    (tmp_path / "programs.py").symlink_to(PROGRAMS)
    (tmp_path / "file_server.py").symlink_to(PROGRAMS)
    (tmp_path / "samples").mkdir()
    server = subprocess.Popen(
        [sys.executable, str(tmp_path / "file_server.py"), str(tmp_path / "samples")], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        if not server.stdout.readline():
            pytest.skip("no FUSE on this machine")
        with programs(tmp_path, READY + "open(F + '/samples/part-0').read()") as (reader,):
            found = chain(reader)
            assert (pids_of(found), found.end) == ([reader, server.pid], "sleeps")
            server.kill()
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        subprocess.run(["umount", "-l", str(tmp_path / "samples")], check=False)


def test_a_lock_of_a_database_leads_to_who_holds_it() -> None:
    """By the titles of Postgres's own processes, where one alone can hold the lock; the server itself is not blamed."""

    def served(pid: int, title: str) -> SeenProcess:
        return SeenProcess(pid, 10, "postgres", f"postgres: trainer db 127.0.0.1({pid}) {title}", "S", 1, 0.0)

    def on(pid: int, *targets: Target) -> Wait:
        return Wait(pid, pid, "postgres", "epoll_wait", targets, any_of=True, main=True)

    def over(pid: int, peer: int) -> Target:
        return Target("tcp", f"127.0.0.1:{peer}", (peer,), "inode", local=f"127.0.0.1:{pid}", peer=f"127.0.0.1:{peer}")

    server = Target("pipe", "pipe 7", (10,), "inode")
    rank = SeenProcess(1, 0, "python", "python train.py", "S", 1, 0.0, rank=1)
    keeper = SeenProcess(2, 0, "python", "python keeper.py", "S", 1, 0.0)
    waits = (
        Wait(1, 1, "python", "poll", (over(1, 11),), main=True),
        on(11, server),
        on(12, over(12, 2), server),
        on(13, over(13, 3), server),
        Wait(2, 2, "python", "clock_nanosleep", (Target("timer", "clock_nanosleep"),), main=True),
    )
    holds, idle = served(12, "idle in transaction"), served(13, "idle")
    one = NodeWaits((rank, keeper, served(11, "UPDATE waiting"), holds, idle), waits)
    found = ProcessGraph({"node": one}).follow(("node", 1))
    assert found is not None
    assert (pids_of(found), found.end, found.sure) == ([1, 11, 12, 2], "sleeps", False)
    two = replace(one, processes=(*one.processes, served(14, "idle in transaction")))
    found = ProcessGraph({"node": two}).follow(("node", 1))
    assert found is not None and pids_of(found) == [1, 11]


def test_a_look_changes_nothing_in_the_processes(tmp_path: Path) -> None:
    """Descriptors, threads and the call that a process is in are the same before and after it was looked at."""

    def seen(pid: int) -> tuple[list[str], list[str], str]:
        root = Path(f"/proc/{pid}")
        return sorted(os.listdir(root / "fd")), sorted(os.listdir(root / "task")), (root / "syscall").read_text()

    with programs(tmp_path, SERVER + "c.recv(1)", CLIENT) as both:
        before = [seen(pid) for pid in both]
        looked(both[1])
        assert [seen(pid) for pid in both] == before


def test_names_that_processes_gave_themselves_are_plain_text(tmp_path: Path) -> None:
    """A title with escapes is saved without what a terminal would obey."""
    with programs(tmp_path, "open('/proc/self/comm', 'w').write('\\x1b[31mred')\n" + READY + "signal.pause()") as (
        pid,
    ):
        (process,) = (one for one in looked(pid).processes if one.pid == pid)
        assert process.name == "?[31mred"


def test_a_process_with_very_many_descriptors_hides_no_other(tmp_path: Path) -> None:
    """A hundred thousand descriptors of one process, which comes first: the wait of another is still followed."""
    hoards = f"""
    import resource
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    r, _ = os.pipe()
    for _ in range(min(most - 50, 100_000)): os.dup(r)
    {READY.strip()}
    time.sleep(600)
    """
    with programs(tmp_path, hoards, SERVER + "os.kill(os.getpid(), signal.SIGSTOP)", CLIENT) as (_, server, client):
        begun = time.thread_time()
        found = chain(client)
        assert (pids_of(found), found.end) == ([client, server], "stopped")
        assert time.thread_time() - begun < 5.0


def test_processes_that_end_while_they_are_looked_at_are_left_out(tmp_path: Path) -> None:
    """Children come and go all the time: the look is over, and what it says is of those that stayed."""
    comes_and_goes = READY + "\nwhile True:\n    os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)\n"
    with programs(tmp_path, comes_and_goes, SERVER + "os.kill(os.getpid(), signal.SIGSTOP)", CLIENT) as pids:
        for _ in range(5):
            graph = ProcessGraph({"node": take(pids, {}, time.sleep, 0.1)})
            found = graph.follow(("node", pids[2]))
            assert found is not None and pids_of(found) == [pids[2], pids[1]]


def test_a_process_that_is_gone_is_no_chain() -> None:
    """A process that is gone when it is looked at gives nothing, and no exception."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    looks = take([gone.pid], {}, lambda _: None)
    assert looks.processes == () and ProcessGraph({"node": looks}).follow(("node", gone.pid)) is None


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("reward_server.py", "--token", "s3cret"), "reward_server.py"),
        (("-u", "-m", "reward_server", "--password=s3cret"), "-m reward_server"),
        (("-c", "token = 's3cret'; import time; time.sleep(60)"), ""),
    ],
)
def test_of_a_command_line_only_the_program_is_kept(tmp_path: Path, words: tuple[str, ...], shown: str) -> None:
    """The program and its script or module are saved, and none of the arguments, in which tokens are given."""
    (tmp_path / "reward_server.py").write_text("import time; time.sleep(60)")
    one = subprocess.Popen([sys.executable, *words], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.2)
        (process,) = (each for each in take([one.pid], {}, lambda _: None).processes if each.pid == one.pid)
        assert process.command == f"{Path(sys.executable).name} {shown}".strip()
    finally:
        one.kill()
        one.wait()
