"""`snapshot PID` of somebody else's process: what it names, answers and plants costs its own part, and no more."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hangscope.cli.main import main
from hangscope.errors import HangscopeError
from hangscope.incident.node_dir import NodeDir
from hangscope.processes import helpers, linux_process, target_rights
from hangscope.recorder.agent.node_status import Rates, rows
from hangscope.recorder.capture import snapshot_job, snapshot_target
from hangscope.recorder.live import find_ranks, watched_rank
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.rank_activity import RankActivity
from hangscope.recorder.live.worker_server import Asker, Question, Topic, ask
from hangscope.recorder.rundir import run_directory
from hangscope.safeio.safe_files import Refused, write_below
from kits import hung_mount
from kits.json_fields import changed, places

NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user beside")
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "PATH": os.environ["PATH"]}

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A directory that the other user owns, reachable for everybody."""
    for place in (tmp_path, *tmp_path.parents):
        if place.stat().st_uid == os.geteuid() and place not in (Path("/"), Path("/tmp")):
            os.chmod(place, 0o755)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    return theirs


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that looks like a rank, by default the other user's."""
    started: list[subprocess.Popen[bytes]] = []

    def act(*words: str, program: str = "/bin/sleep", user: int = NOBODY, **environ: str) -> subprocess.Popen[bytes]:
        one = subprocess.Popen(
            ["python", *(words or ("60",))], executable=program, env={**RANK, **environ}, user=user, group=user,
            extra_groups=[], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
        )  # fmt: skip
        started.append(one)
        time.sleep(0.2)
        return one

    yield act
    for one in started:
        one.kill()
        one.wait()


@pytest.fixture(autouse=True)
def one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot looks twice, seconds apart, to tell who moves; here nobody asks that."""
    monkeypatch.setattr("hangscope.recorder.live.two_samples.LEAST_S", 0.0)
    monkeypatch.setattr("hangscope.recorder.live.two_samples.MOST_S", 0.0)


def taken(pid: int, out: Path | None) -> tuple[str, list[str], Path]:
    """All that a snapshot of the process holds, what was said, and where it is."""
    said: list[str] = []
    incident = snapshot_job.of_process(pid, out, said.append)
    text = "\n".join(path.read_text(errors="replace") for path in incident.rglob("*") if path.is_file())
    return text, said, incident


# ---- what it names ---------------------------------------------------------------------------------------------------


@root_only
def test_a_setuid_program_has_its_callers_rights(other: Path, start: Start, tmp_path: Path) -> None:
    """A program that runs as root has the environment of who started it: what that names is opened as the starter."""
    program = other / "python"
    shutil.copy("/bin/sleep", program)
    os.chown(program, 0, 0)
    os.chmod(program, 0o4755)
    secret = tmp_path / "shadow"
    secret.write_text("hash-of-root")
    os.chmod(secret, 0o600)
    one = start(program=str(program), TORCHELASTIC_ERROR_FILE=str(secret))
    if Path(f"/proc/{one.pid}/status").read_text().split("Uid:")[1].split()[1] != "0":
        pytest.skip("this file system knows no setuid")
    assert target_rights.of(one.pid).user == NOBODY
    text, _, incident = taken(one.pid, tmp_path / "out")
    assert "hash-of-root" not in text
    assert "error file of rank 0" in text
    assert stat.S_IMODE(incident.stat().st_mode) == 0o700


_CONTAINER = """
mount -t tmpfs none {place}
printf 'of the container' > {place}/error.json
ln -s {secret} {place}/lead
exec -a python sleep 60
"""


@root_only
def test_a_path_of_a_container_is_looked_up_there(start: Start, tmp_path: Path) -> None:
    """Root in a container is not root here: its paths, and links in them, lead to its own files, never to ours."""
    place, secret = tmp_path / "place", tmp_path / "shadow"
    place.mkdir()
    (place / "error.json").write_text("of the host")
    secret.write_text("hash-of-root")
    for number, name in enumerate(("error.json", "lead")):
        script = _CONTAINER.format(place=place, secret=secret)
        environ = {"TORCHELASTIC_ERROR_FILE": str(place / name)}
        one = start("-m", "bash", "-c", script, program=shutil.which("unshare") or "", user=0, **environ)
        time.sleep(0.5)
        if not find_ranks.ranks_below(one.pid):
            pytest.skip("no mount namespace can be made here")
        text, _, incident = taken(one.pid, tmp_path / f"out{number}")
        assert "of the host" not in text
        assert ("of the container" in text) == (name == "error.json")
        assert stat.S_IMODE(incident.stat().st_mode) == 0o700
        found = target_rights.of(one.pid)
        assert found.inside is not None
        assert found.read(place / "error.json", 100) == b"of the container"


@root_only
def test_a_number_that_is_another_process_by_now_lends_no_rights(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between reading what a process names and whose it is, its number may have become root's: nobody's rights then."""
    one = start(TORCHELASTIC_ERROR_FILE="/etc/shadow")
    before = linux_process.environment(one.pid)
    real = target_rights.of

    def meanwhile(pid: int) -> target_rights.Rights:
        one.kill()
        one.wait()
        real(pid)
        return target_rights.Rights(inside=(1, 1))  # whoever has the number now

    monkeypatch.setattr(linux_process, "environment", lambda _: before)
    monkeypatch.setattr(target_rights, "of", meanwhile)
    assert watched_rank.WatchedRank.of(find_ranks.RankProcess(one.pid, 0)).rights == target_rights.NOBODY


@pytest.mark.parametrize("read", (linux_process.environment, linux_process.command_line))
def test_an_environment_of_gigabytes_is_read_in_part(
    read: Callable[[int], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may tell the kernel where its environment lies (PR_SET_MM): no more is read than one can have."""
    (tmp_path / "7").mkdir()
    for name in ("environ", "cmdline"):
        (tmp_path / "7" / name).write_bytes(b"RANK=0\0")
        os.truncate(tmp_path / "7" / name, 300 << 20)
    monkeypatch.setattr(linux_process, "PROC", tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "RANK" in str(read(7))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 << 10  # kilobytes


@pytest.mark.parametrize("text", ("²", "٣", "9" * 5000, "-1", "1e3", " 1", "0x1", "99999999999999999999"))
def test_a_rank_that_is_no_number_is_no_rank(text: str) -> None:
    """Whatever RANK says, whoever looks for ranks goes on."""
    one = subprocess.Popen(["python", "60"], executable="/bin/sleep", env={**RANK, "RANK": text})
    try:
        time.sleep(0.1)
        assert find_ranks.ranks_below(one.pid) == []
    finally:
        one.kill()
        one.wait()


@pytest.mark.skipif(not hung_mount.possible(), reason="needs root and FUSE, for a file system that hangs")
def test_a_silent_file_system_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank names a file there: the first read says that nobody answers, the others do not wait for it again."""
    monkeypatch.setattr(target_rights, "SECONDS", 1.0)
    place = tmp_path / "hung"
    place.mkdir()
    with hung_mount.silent(place):
        begun = time.monotonic()
        for number in range(8):
            with pytest.raises(Refused):
                target_rights.Rights().read(place / f"error_{number}.json", 10)
        assert time.monotonic() - begun < 3


# ---- where it leads --------------------------------------------------------------------------------------------------


def _run_of(folder: Path, **state: object) -> None:
    (folder / "nodes/a").mkdir(parents=True)
    (folder / "nodes/a/status.json").write_text(json.dumps({"node": "a", "live": [], "ended": None, **state}))
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)


@root_only
def test_a_link_in_a_run_leads_root_nowhere(
    other: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot of a run goes into its directory: a link planted there is refused, nothing comes through."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(snapshot_job, "AGENTS_S", 1.0)
    victim = tmp_path / "cron.d"
    victim.mkdir()
    _run_of(other / "run")
    (other / "run/snapshot-1").symlink_to(victim)
    os.lchown(other / "run/snapshot-1", NOBODY, NOBODY)
    one = start(HANGSCOPE_DIR=str(other / "run"))
    with pytest.raises(OSError, match=r"[Ll]ink|Permission"):
        snapshot_job.of_process(one.pid, None, lambda _: None)
    assert list(victim.iterdir()) == []


@root_only
def test_root_writes_into_anothers_run_as_that_user(
    other: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark that asks the agents is the other user's file; what root captures itself stays with root, in private."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(snapshot_job, "AGENTS_S", 1.0)
    one = start(HANGSCOPE_DIR=str(other / "run"))
    _run_of(other / "run", command_pid=one.pid, sockets=str(other))
    said: list[str] = []
    incident = snapshot_job.of_process(one.pid, None, said.append)
    mark = other / "run/snapshot-1/stall.json"
    assert mark.stat().st_uid == NOBODY
    assert [path.name for path in mark.parent.iterdir()] == ["stall.json"]
    assert incident.is_relative_to(tmp_path / "hangscope")
    assert stat.S_IMODE(incident.stat().st_mode) == 0o700


@root_only
@pytest.mark.parametrize("user", [0, NOBODY])
def test_a_directory_that_a_stranger_made_first_is_not_used(
    start: Start, other: Path, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    """./hangscope/snapshot-JOB of somebody else's, open for all: what is taken goes beside it, to one of ours."""
    other.chmod(0o777)
    monkeypatch.chdir(other)
    planted = other / "hangscope/snapshot-j1"
    planted.mkdir(parents=True)
    for place in (planted.parent, planted):
        os.chown(place, 12345, 12345)
        place.chmod(0o777)
    _, _, incident = taken(start(user=user, SLURM_JOB_ID="j1").pid, None)
    assert incident == other / "hangscope/snapshot-j1.2"
    assert incident.stat().st_uid == 0
    assert not list(planted.iterdir())
    assert user == 0 or stat.S_IMODE(incident.stat().st_mode) == 0o700


@root_only
def test_the_mode_that_is_changed_is_the_directorys_own(
    start: Start, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is exchanged for a link as soon as it is there, and as soon as run.json is in it."""
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    other.chmod(0o777)
    real_create = run_directory._create
    real_make = run_directory._make_own

    def exchanged(root: Path) -> None:
        root.rename(root.with_name(f"moved-{time.monotonic_ns()}"))
        root.symlink_to(victim)

    def create(path: Path, value: dict[str, object]) -> bool:
        made = real_create(path, value)
        if path.name == run_directory.RUN and not path.parent.is_symlink():
            exchanged(path.parent)
        return made

    def make(root: Path, *, private: bool, own: bool) -> None:
        real_make(root, private=private, own=own)
        exchanged(root)

    for name, act in (("_create", create), ("_make_own", make)):
        with monkeypatch.context() as patch:
            patch.setattr(run_directory, name, act)
            with suppress(OSError, HangscopeError):
                taken(start().pid, other / f"out{name}")
        assert stat.S_IMODE(victim.stat().st_mode) == 0o755
        assert not list(victim.iterdir())


@root_only
def test_magic_links_in_an_environment_show_nothing(
    start: Start, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """procfs leads whoever looks there to their own files, and root to everybody's: nothing is taken from there."""
    private = tmp_path / "private" / "inner"  # whoever comes to it past the directory above may read it
    private.mkdir(parents=True)
    private.parent.chmod(0o700)
    (private / "log").write_text("secret-of-root")
    monkeypatch.chdir(private)
    (other / "link").symlink_to("/proc/self/cwd/log")
    own = other / "error.json"
    own.write_text("their-own-error")
    for place in (
        "/proc/self/cwd/log",
        f"/proc/{os.getpid()}/cwd/log",
        f"/proc/{os.getpid()}/root{private}/log",
        f"/proc/1/root{private}/log",
        "/proc/thread-self/cwd/log",
        str(other / "link"),
    ):
        one = start(TORCHELASTIC_ERROR_FILE=place, NCCL_DEBUG_FILE=place, SLURM_JOB_ID="j")
        text, _, _ = taken(one.pid, tmp_path / "out")
        assert "secret-of-root" not in text, place
        shutil.rmtree(tmp_path / "out")
    text, _, _ = taken(start(TORCHELASTIC_ERROR_FILE=str(own)).pid, tmp_path / "out")
    assert "their-own-error" in text


@root_only
def test_a_helper_has_the_targets_rights_and_no_others(start: Start, other: Path, tmp_path: Path) -> None:
    """Its user, groups and no capability; what it gives is bounded; of links it follows those that the target could."""
    (other / "log").write_text("x" * 1000)
    (other / "link").symlink_to(other / "log")
    theirs = target_rights.of(start().pid)
    assert theirs.read(other / "link", 10, tail=True) == b"x" * 10
    with pytest.raises(Refused, match="more than 10 bytes"):
        theirs.read(other / "log", 10)
    with pytest.raises(PermissionError):
        (tmp_path / "key").write_text("k")
        (tmp_path / "key").chmod(0o600)
        theirs.read(tmp_path / "key", 10)
    with pytest.raises(Refused, match="procfs"):
        theirs.read(Path("/proc/self/status"), 100_000)
    assert theirs.find(f"{other}/l*") == [other / "link", other / "log"]
    assert [path for path, _ in theirs.files([other / "log", other / "gone"])] == [other / "log"]
    helper = next(
        one for who, some in helpers._idle.items() if who.user == NOBODY for one in some if one.poll() is None
    )
    status = Path(f"/proc/{helper.pid}/status").read_text()
    assert f"Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}\n" in status
    assert f"Gid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}\n" in status
    assert "Groups:\t \n" in status
    assert "CapEff:\t0000000000000000\n" in status
    assert "CapPrm:\t0000000000000000\n" in status


CAPABLE = """
import ctypes, os, stat, sys
sys.path[:] = {path!r}
from pathlib import Path
import hangscope.recorder.live.two_samples as two_samples
two_samples.LEAST_S = two_samples.MOST_S = 0.0
from hangscope.recorder.capture import snapshot_job
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(8, 1, 0, 0, 0)
os.setgroups([]); os.setresgid(23456, 23456, 23456); os.setresuid(23456, 23456, 23456)
bits = 1 << 19 | 1 << 2
assert libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(bits, bits, bits, 0, 0, 0)) == 0
for number in (19, 2):
    libc.prctl(47, 2, number, 0, 0)
os.umask(0o022)
incident = snapshot_job.of_process(int(sys.argv[1]), Path(sys.argv[2]), print)
print(incident)
"""


@root_only
@pytest.mark.parametrize(("user", "named"), [(NOBODY, "shadow"), (23456, "shadow"), (23456, "theirs/error.json")])
def test_whoever_has_capabilities_is_privileged(
    start: Start, other: Path, tmp_path: Path, user: int, named: str
) -> None:
    """Not root, but able to read everything: what a process names is read without that, and the incident is private."""
    shadow = tmp_path / "shadow"
    shadow.write_text("hash-of-root")
    shadow.chmod(0o600)
    (other / "error.json").write_text("an error of theirs")
    out = tmp_path / "place"
    out.mkdir()
    out.chmod(0o777)
    one = start(user=user, TORCHELASTIC_ERROR_FILE=str(tmp_path / named))
    code = CAPABLE.format(path=sys.path)
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(one.pid), str(out / "incident")], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    incident = Path(done.stdout.splitlines()[-1])
    text = "\n".join(path.read_text(errors="replace") for path in incident.rglob("*") if path.is_file())
    assert "hash-of-root" not in text
    assert incident.stat().st_uid == 23456
    assert stat.S_IMODE(incident.stat().st_mode) == 0o700
    assert ("an error of theirs" in text) == (named != "shadow")


@root_only
def test_a_directory_for_everybody_is_nobodys_run(start: Start, other: Path) -> None:
    """HANGSCOPE_DIR=/tmp: what root owns and anybody can write into is not taken for root's own."""
    one = start()
    assert not snapshot_target.may_follow(Path("/tmp"), one.pid)
    assert snapshot_target.may_follow(other, one.pid)


@root_only
def test_a_directory_that_was_there_keeps_its_mode(start: Start, tmp_path: Path) -> None:
    """`--dir /tmp` must not close /tmp: the incident is made private below it."""
    place = tmp_path / "shared"
    place.mkdir()
    os.chmod(place, 0o1777)
    incident = taken(start().pid, place)[2]
    assert stat.S_IMODE(place.stat().st_mode) == 0o1777
    assert incident.parent == place
    assert stat.S_IMODE(incident.stat().st_mode) == 0o700


@root_only
def test_a_strangers_link_in_the_place_of_a_directory_is_refused(tmp_path: Path, other: Path) -> None:
    """Where an incident's directory should be, another user's link is not followed, and one of ours is."""
    victim = tmp_path / "victim"
    victim.mkdir()
    for name, owner in (("theirs", NOBODY), ("ours", 0)):
        (other / name).symlink_to(victim)
        os.lchown(other / name, owner, owner)
    with pytest.raises(Refused, match="another user's link"):
        run_directory.mark(other / "theirs", node="a", reason="stall", detail="")
    node_dir = NodeDir(other / "theirs", other / "theirs/nodes/a")
    assert not node_dir.write("x", b"")
    assert list(victim.iterdir()) == []
    write_below(other / "ours", "x", b"", wary=True)
    assert [path.name for path in victim.iterdir()] == ["x"]


@pytest.mark.parametrize("kind", ("pipe", "device", "link", "bytes"))
def test_a_verdict_that_was_planted_keeps_nobody(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever lies where the agents put their verdict, `snapshot` ends, with no traceback and no escape."""
    planted, secret = tmp_path / "i/verdict.txt", tmp_path / "secret"
    planted.parent.mkdir()
    secret.write_text("secret")
    if kind == "pipe":
        os.mkfifo(planted)
    elif kind == "bytes":
        planted.write_bytes(b"\xff\x1b[2J")
    else:
        planted.symlink_to("/dev/zero" if kind == "device" else secret)
    monkeypatch.setattr(snapshot_job, "of_run", lambda *_, **__: planted.parent)
    begun = time.monotonic()
    assert main(["snapshot", str(tmp_path)]) in (0, 2)
    shown = capsys.readouterr()
    assert "\x1b" not in shown.err
    assert "secret" not in shown.err.replace(str(tmp_path), "")
    assert time.monotonic() - begun < 20


# ---- what it answers -------------------------------------------------------------------------------------------------


class Answers:
    """A worker server that gives its own answers."""

    def __init__(self, path: Path, act: Callable[[str, socket.socket], None]) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(64)
        self._act = act
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                question = connection.recv(4096).decode().split(" ")[1].removeprefix("/handler/")
                self._act(question, connection)
            except OSError:
                pass

    def close(self) -> None:
        self._listening.close()


def _endlessly(_: str, connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(bytes(1 << 20))


def _slowly(_: str, connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.2)


@pytest.mark.parametrize("act", (_endlessly, _slowly))
def test_a_server_that_never_ends_keeps_nobody(
    act: Callable[[str, socket.socket], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gigabytes, or a byte at a time: a question ends by its deadline and its bound, alone and among others."""
    monkeypatch.setattr("hangscope.recorder.live.worker_server.MAX_ANSWER_BYTES", 8 << 20)
    monkeypatch.setattr("hangscope.recorder.live.worker_server.MAX_POLLED_BYTES", 8 << 20)
    server = Answers(tmp_path / "s", act)
    begun = time.monotonic()
    answer = ask(str(tmp_path / "s"), "ping", 2.0)
    assert not answer.ok
    assert not answer.body
    asker = Asker()
    asker.ask(("x", 0), str(tmp_path / "s"), "ping")
    for _ in range(3):
        for _, late in asker.wait(0.5):
            assert not late.ok
    assert asker._held() <= 16 << 20
    asker.close()
    server.close()
    assert time.monotonic() - begun < 8


NONSENSE: tuple[object, ...] = (
    None, 5, -1, 1e308, float("nan"), float("inf"), "", "x" * 100_000, "\x1b[2J\u202e\n", [], {}, [[]], {"a": {}},
    [None, 5, "x", [], {}], True, "²", [{"frames": 5}], 10**30,
)  # fmt: skip
GOOD: dict[str, dict[str, object]] = {
    "hangscope_progress": {
        "rank": 0, "world_size": 2, "symbols": True, "meets_at": "a:1",
        "groups": [{"name": "0", "desc": "default_pg", "ranks": [0, 1], "backend": "cpu:gloo"}],
        "status": {"gloo": {"0": {"last_enqueued_collective": 3, "last_completed_collective": 2}}},
    },
    "fr_trace_json": {
        "version": "2.10", "pg_config": {}, "pg_status": {},
        "entries": [{
            "record_id": 1, "pg_id": 0, "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce",
            "collective_seq_id": 3, "p2p_seq_id": 0, "is_p2p": False, "state": "scheduled", "retired": False,
            "time_created_ns": 1, "input_sizes": [[1]],
        }],
    },
    "wait_counter_values": {"pytorch.wait_counter.c10d.init_process_group": {"active_count": 1}},
    "hangscope_stacks": {"threads": [{"main": True, "os_thread_id": 1, "frames": [
        {"filename": "/x/train.py", "line": 1, "name": "f"}]}]},
}  # fmt: skip


def test_no_field_of_an_answer_ends_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field of every answer of a rank, with a value of every wrong kind: the other rank is watched as before."""
    monkeypatch.setattr("hangscope.recorder.live.polling.ANSWER_S", 0.3)
    answer: dict[str, bytes] = {}
    good = {name: json.dumps(value).encode() for name, value in GOOD.items()}

    def act(question: str, connection: socket.socket) -> None:
        body = answer.get(question.partition("?")[0], b"{}")
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    server = Answers(tmp_path / "s.sock", act)
    registration = {
        "pid": os.getpid(), "rank": 0, "local_rank": 0, "world_size": 2, "socket": str(tmp_path / "s.sock"),
        "handlers": list(GOOD),
    }  # fmt: skip
    (tmp_path / f"{os.getpid()}.json").write_text(json.dumps(registration))
    tried = 0
    for name, value in GOOD.items():
        for at in places(value):
            for new in NONSENSE:
                answer.clear()
                answer.update(good)
                answer[name] = json.dumps(changed(value, at, new)).encode()
                _one_turn(tmp_path)
                tried += 1
    for raw in (b"[" * 100_000, b"\xff\xfe", b'{"rank": ' + b"9" * 5000 + b"}", b"{" * 1000):
        for name in GOOD:
            answer.clear()
            answer.update({**good, name: raw})
            _one_turn(tmp_path)
            tried += 1
    server.close()
    assert tried > 700


def _one_turn(folder: Path) -> None:
    polling = Polling(folder, 5.0)
    polling.turn(None)
    polling._next_groups = 0.0
    for rank in polling:
        polling._asker.ask(Question(Topic.RING, rank.number, "gloo"), rank.process.socket or "", "fr_trace_json")
        polling._asker.ask(Question(Topic.STACKS, rank.number), rank.process.socket or "", "hangscope_stacks")
        polling._asker.ask(Question(Topic.WAIT_COUNTERS, rank.number), rank.process.socket or "", "wait_counter_values")
    polling._take(polling._asker.wait(0.3))
    polling.note_ends()
    found = list(polling)
    assert [rank for rank in found if rank.process.pid == os.getpid()]
    json.dumps(rows(found, Rates(), RankActivity()))
    for rank in found:
        assert 0 <= rank.number < find_ranks.MOST
        rank.row(None)
        rank.last_answer()
        rank.last_rings()
        rank.members("gloo")
        str(rank.progress.oldest())
        polling.unrecorded_waits.stuck(found, (), 5.0, time.monotonic())
    polling.close()
