"""Files that others may have made: links, pipes, devices, other owners and hanging reads cost a gap, nothing else."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy  # noqa: F401  # what `as_nobody` runs must be loaded before: another user may not read this interpreter
import pytest

import hangscope
import hangscope.diagnosis
import hangscope.reader.load
import hangscope.report.terminal
from hangscope.bundle.pack import write_bundle
from hangscope.bundle.unpack import extract
from hangscope.cli.main import main
from hangscope.incident.layout import write_atomic
from hangscope.processes import target_rights
from hangscope.recorder.capture import snapshot_job
from hangscope.recorder.live.find_ranks import Registry
from hangscope.recorder.rundir import live_view, run_directory
from hangscope.safeio import safe_files
from hangscope.safeio.member_names import Names, fitting, unsafe
from hangscope.safeio.safe_files import (
    Patience,
    Refused,
    append_below,
    folder_below,
    read_below,
    read_file,
    write_below,
)
from hangscope.safeio.walk import survey

CASE = Path(__file__).parents[1] / "cases" / "skipped"
NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user beside")


def as_nobody(act: Callable[[], str]) -> str:
    """What `act` gives in a process that has only another user's rights."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            text = act()
        except BaseException:
            text = traceback.format_exc()
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        text = stream.read().decode()
    os.waitpid(child, 0)
    return text


def open_to_all(folder: Path) -> None:
    """Let everybody come to a folder of pytest's, which lies in one that is its user's alone."""
    for place in (folder, *folder.parents):
        if place.stat().st_uid == os.geteuid() and place not in (Path("/"), Path("/tmp")):
            os.chmod(place, 0o755)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Path]:
    """A directory that the other user owns, reachable for everybody."""
    open_to_all(tmp_path)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    yield theirs


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A pipe, a socket, a device and a directory are refused at once, with what they are; none is waited for."""
    os.mkfifo(tmp_path / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    begun = time.monotonic()
    for name, words in (("pipe", "a pipe"), ("socket", "a socket"), (".", "a directory"), ("/dev/zero", "a device")):
        with pytest.raises(Refused, match=words):
            read_file(tmp_path / name, 100)
    listening.close()
    assert time.monotonic() - begun < 1


def test_no_link_is_followed_below_a_directory(tmp_path: Path) -> None:
    """Neither a file nor a directory on the way may be a link; the message names it."""
    (tmp_path / "secret").write_text("secret")
    run = tmp_path / "run"
    run.mkdir()
    (run / "file").symlink_to(tmp_path / "secret")
    (run / "folder").symlink_to(tmp_path)
    with pytest.raises(Refused, match="a link"):
        read_below(run, "file", 100)
    with pytest.raises(Refused, match="a link in the place of a directory"):
        read_below(run, "folder/secret", 100)
    with pytest.raises(Refused, match="leads elsewhere"):
        read_below(run, "../secret", 100)


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    """A file larger than the limit is refused, or its end is taken, whatever size it claims."""
    (tmp_path / "x").write_bytes(b"a" * 100 + b"end")
    with pytest.raises(Refused, match="more than 50 bytes"):
        read_file(tmp_path / "x", 50)
    assert read_file(tmp_path / "x", 5, tail=True) == b"aaend"
    assert read_file("/proc/self/status", 1 << 20)  # its size is said to be 0


def test_a_read_that_hangs_is_left_behind() -> None:
    """What does not come back costs its time once, and is not asked again while it hangs."""
    patience = Patience(0.2)
    begun = time.monotonic()
    with pytest.raises(Refused, match=r"no answer within 0\.2 s"):
        patience.ask("nfs", lambda: time.sleep(5))
    with pytest.raises(Refused, match="still no answer"):
        patience.ask("nfs", lambda: time.sleep(5))
    assert patience.ask("other", lambda: 7) == 7
    assert time.monotonic() - begun < 2


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_nothing_is_written_through_a_planted_link(tmp_path: Path) -> None:
    """A link in the place of a file is replaced or refused, one in the place of a directory refused."""
    target = tmp_path / "authorized_keys"
    target.write_text("mine\n")
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / "logs/launcher.log").symlink_to(target)
    with pytest.raises(Refused):
        append_below(run, "logs/launcher.log")
    assert write_below(run, "logs/launcher.log", b"ours\n")
    assert (run / "logs/launcher.log").read_text() == "ours\n"
    (run / "away").symlink_to(tmp_path)
    with pytest.raises(Refused):
        write_below(run, "away/authorized_keys", b"ours\n")
    os.link(target, run / "logs/other.log")
    with pytest.raises(Refused, match="another name"):
        append_below(run, "logs/other.log")
    os.mkfifo(run / "logs/pipe.log")
    with pytest.raises(Refused):
        append_below(run, "logs/pipe.log")
    assert target.read_text() == "mine\n"


def test_modes_follow_the_umask(tmp_path: Path) -> None:
    """What is written is readable for whom the umask says; a map and a bundle that is not redacted for nobody else."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rank_0.log").write_text("gpu-a017:1:1 [0] NCCL INFO x\n")
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "plain", "x")
        write_bundle(tmp_path / "in", tmp_path / "a.tar.gz", pseudonymise=True)
        write_bundle(tmp_path / "in", tmp_path / "b.tar.gz", redact=False)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir() if path.is_file()}
    assert modes == {"plain": 0o640, "a.tar.gz": 0o640, "b.tar.gz": 0o600, "a.aliases.json": 0o600}


@root_only
def test_another_users_folder_is_not_ours(other: Path) -> None:
    """A node's folder that somebody else made is passed over for the next name; a link as well."""
    (other / "nodes/gpu-1").mkdir(parents=True)
    os.chown(other / "nodes/gpu-1", NOBODY, NOBODY)
    (other / "nodes/gpu-1-2").symlink_to("/tmp")
    with pytest.raises(Refused, match="belongs to another user"), folder_below(other, ["nodes", "gpu-1"], own=True):
        pass
    assert run_directory.claim_node(other, "gpu-1").name == "gpu-1-3"


@root_only
def test_where_a_server_calls_root_nobody_what_we_made_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NFS that squashes root our folder belongs to nobody: it is used, and a folder of nobody's elsewhere is not."""
    plain = os.mkdir

    def squashed(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        plain(name, mode, dir_fd=dir_fd)
        os.chown(name, NOBODY, NOBODY, dir_fd=dir_fd)

    monkeypatch.setattr(safe_files, "_squashing", set())
    (tmp_path / "nodes" / "theirs").mkdir(parents=True)
    os.chown(tmp_path / "nodes" / "theirs", NOBODY, NOBODY)
    with (
        pytest.raises(Refused, match="another user"),
        folder_below(tmp_path, ["nodes", "theirs"], make=True, own=True),
    ):
        pass
    monkeypatch.setattr(os, "mkdir", squashed)
    for _ in range(2):
        with folder_below(tmp_path, ["nodes", "ours"], make=True, own=True):
            pass
    (tmp_path / "nodes" / "ours" / "log").write_bytes(b"")
    os.chown(tmp_path / "nodes" / "ours" / "log", NOBODY, NOBODY)
    append_below(tmp_path / "nodes" / "ours", "log").close()


@root_only
def test_a_planted_private_directory_is_refused(other: Path) -> None:
    """The fallback below TMPDIR is ours alone: where somebody was there first, another one is used."""
    with pytest.raises(Refused):
        safe_files.make_private(other)
    (other.parent / "link").symlink_to("/tmp")
    with pytest.raises(Refused, match="a link"):
        safe_files.make_private(other.parent / "link")


# ---- names -----------------------------------------------------------------------------------------------------------


def test_names_that_clash_are_made_distinct_in_few_steps() -> None:
    """A thousand names that differ in case or length alone all get names of their own, each one safe, and soon."""
    begun = time.monotonic()
    names = Names()
    wanted = [("Llama" if n % 2 else "llama") + f"/{'x' * 300}{n % 3}/rank_{n % 5}" for n in range(600)]
    wanted += ["A/b", "a/B", "a", "A", "a/b/c", "A/B/C"] * 20
    given = [fitting(name, names) for name in wanted]
    assert len({name.casefold() for name in given}) == len(given)
    assert not [name for name in given if unsafe(name)]
    assert time.monotonic() - begun < 5


def test_two_folders_that_differ_in_case_alone_are_bundled(tmp_path: Path) -> None:
    """`Llama/` and `llama/` both come through a bundle, and the dump's name keeps its rank at its end."""
    for folder in ("Llama", "llama"):
        (tmp_path / "in" / folder).mkdir(parents=True)
        (tmp_path / "in" / folder / "nccl_trace_rank_3").write_bytes(pickle.dumps({"version": "2.1"}, protocol=2))
    made = write_bundle(tmp_path / "in", tmp_path / "x.tar.gz")
    extract(made.path, tmp_path / "out")
    found = sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*rank_3"))
    assert len(found) == 2
    assert all(path.name.endswith("rank_3") for path in found)


# ---- what is skipped is said -----------------------------------------------------------------------------------------


def _odd_tree(root: Path) -> None:
    (root / "logs").mkdir(parents=True)
    (root / "logs/rank_0.log").write_text("gpu-a017:1:1 [0] NCCL INFO x\n")
    os.mkfifo(root / "logs/rank_1.log")
    (root / "logs/loop.log").symlink_to(root / "logs/loop.log")
    (root / "logs/outside.log").symlink_to("/etc/passwd")
    (root / "up").symlink_to("/")
    (root / "ring").symlink_to(root)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "sock.log"))


def test_odd_things_in_a_tree_are_named(tmp_path: Path) -> None:
    """Pipes, sockets, loops and links outside are gaps by their names, in the diagnosis and in the bundle."""
    _odd_tree(tmp_path / "in")
    names = {"logs/rank_1.log", "logs/loop.log", "logs/outside.log", "up", "sock.log"}
    assert names <= {name for name, _ in survey(tmp_path / "in").skipped}
    job = hangscope.load(tmp_path / "in")
    said = " ".join(gap.what for gap in job.gaps)
    assert all(f"{tmp_path}/in/{name}" in said for name in names)
    made = write_bundle(tmp_path / "in", tmp_path / "x.tar.gz")
    assert names <= {gap.what for gap in made.manifest.gaps}
    assert names <= {gap.what for gap in made.left_out}  # which the verb says on stderr
    with tarfile.open(made.path) as bundle:
        assert "x/logs/rank_0.log" in bundle.getnames()
        assert not [name for name in bundle.getnames() if "passwd" in name or "outside" in name]


@pytest.mark.parametrize("verb", ["diagnose", "show", "bundle", "report"])
def test_a_cyclic_link_ends_no_verb_with_a_traceback(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tree with loops, pipes and sockets gives an answer or an error, never a traceback."""
    _odd_tree(tmp_path / "in")
    extra = ["-o", str(tmp_path / "out.tar.gz")] if verb == "bundle" else []
    extra = ["-o", str(tmp_path / "out.txt")] if verb == "report" else extra
    assert main([verb, str(tmp_path / "in"), *extra]) in (0, 1, 2, 3)
    assert "Traceback" not in capsys.readouterr().err


@root_only
def test_a_folder_that_cannot_be_read_is_a_gap(tmp_path: Path) -> None:
    """What lies in it is missing, and the diagnosis is told so by name: nobody may be blamed for its silence."""
    open_to_all(tmp_path)
    hidden = tmp_path / "in/node-b"
    hidden.mkdir(parents=True)
    (tmp_path / "in/rank_0.log").write_text("gpu-a017:1:1 [0] NCCL INFO x\n")
    os.chmod(hidden, 0o700)

    def gaps() -> str:
        return "\n".join(f"{gap.what}: {gap.why}" for gap in hangscope.load(tmp_path / "in").gaps)

    said = as_nobody(gaps)
    assert f"everything in {hidden}: the directory cannot be read: Permission denied" in said

    def bundled() -> str:
        return repr(survey(tmp_path / "in").skipped)

    assert "'node-b', 'the directory cannot be read: Permission denied'" in as_nobody(bundled)


@root_only
@pytest.mark.parametrize("name", ["rank_1.log", "nccl_trace_rank_1", "logs.tar.gz", "node.json"])
def test_a_file_that_cannot_be_read_is_a_gap(name: str, tmp_path: Path) -> None:
    """One file that is closed to us is named too, in the diagnosis and in the bundle, whatever it may have been."""
    open_to_all(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rank_0.log").write_text("gpu-a017:1:1 [0] NCCL INFO x\n")
    (tmp_path / "in" / name).write_bytes(b"[rank1]: RuntimeError: x\n")
    os.chmod(tmp_path / "in" / name, 0o600)
    (tmp_path / "out").mkdir()
    os.chmod(tmp_path / "out", 0o777)

    def said() -> str:
        gaps = [f"{gap.what}: {gap.why}" for gap in hangscope.load(tmp_path / "in").gaps]
        made = write_bundle(tmp_path / "in", tmp_path / "out/b.tar.gz")
        return json.dumps([gaps, [f"{gap.what}: {gap.why}" for gap in made.manifest.gaps]])

    (tmp_path / "out/b.tar.gz").touch(mode=0o666)
    write_bundle(
        CASE, tmp_path / "w.tar.gz"
    )  # whatever is imported on the way must be there before the rights are gone
    read, packed = json.loads(as_nobody(said))
    assert any(name in gap and "ermission denied" in gap for gap in read)
    assert any(name in gap and "ermission denied" in gap for gap in packed)


@root_only
def test_a_folder_that_cannot_be_read_accuses_nobody(tmp_path: Path) -> None:
    """With the culprit's node closed to us, no innocent rank is named in its place, and the answer names the folder."""
    open_to_all(tmp_path)
    shutil.copytree(CASE, tmp_path / "in")
    os.chmod(tmp_path / "in/gpu-worker-7", 0o700)

    def answer() -> str:
        found = hangscope.diagnose(hangscope.load(tmp_path / "in"))
        return json.dumps([[one.rank for one in found.culprits], hangscope.report.terminal.render_text(found)])

    answer()  # whatever is imported on the way must be there before the rights are gone
    culprits, shown = json.loads(as_nobody(answer))
    assert set(culprits) <= {2}
    assert "gpu-worker-7" in shown
    assert "cannot be read" in " ".join(shown.split())


# ---- a target's environment ------------------------------------------------------------------------------------------


@pytest.fixture
def target(other: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process of the other user that looks like a rank."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**environ: str) -> subprocess.Popen[bytes]:
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "PATH": os.environ["PATH"]}
        process = subprocess.Popen(
            ["python", "60"], executable="/bin/sleep", env={**rank, **environ}, user=NOBODY, group=NOBODY,
            extra_groups=[], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def _snapshot(pid: int, out: Path) -> tuple[str, list[str]]:
    said: list[str] = []
    incident = snapshot_job.of_process(pid, out, said.append)
    return "\n".join(path.read_text(errors="replace") for path in incident.rglob("*") if path.is_file()), said


@pytest.fixture
def one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot looks twice, seconds apart, to tell who moves; here nobody asks that."""
    monkeypatch.setattr("hangscope.recorder.live.two_samples.LEAST_S", 0.0)
    monkeypatch.setattr("hangscope.recorder.live.two_samples.MOST_S", 0.0)


@root_only
@pytest.mark.usefixtures("one_look")
def test_root_reads_nothing_that_the_target_could_not(
    target: Callable[..., subprocess.Popen[bytes]], other: Path, tmp_path: Path
) -> None:
    """A root-only file, a device and a pipe that a process's environment names are gaps; its own file is copied."""
    secret = tmp_path / "shadow"
    secret.write_text("root:hash-of-root:1")
    os.chmod(secret, 0o600)
    os.mkfifo(other / "fifo.1")
    (other / "mine").write_text('{"message": "from the target"}')
    begun = time.monotonic()
    for number, file in enumerate((str(secret), "/dev/zero", str(other / "fifo.1"))):
        one = target(TORCHELASTIC_ERROR_FILE=file, NCCL_DEBUG_FILE=f"{file[:-1]}%p" if number else f"{secret}%p")
        text, _ = _snapshot(one.pid, tmp_path / f"out{number}")
        assert "hash-of-root" not in text
        assert "error file of rank 0" in text
        one.kill()
        one.wait()
    own = target(TORCHELASTIC_ERROR_FILE=str(other / "mine"))
    assert "from the target" in _snapshot(own.pid, tmp_path / "own")[0]
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700
    assert time.monotonic() - begun < 60


@root_only
def test_rights_are_given_away_for_one_read_alone(
    tmp_path: Path, target: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """With the target's rights a root-only file is not readable; afterwards, and in other threads, it still is."""
    secret = tmp_path / "secret"
    secret.write_text("s")
    os.chmod(secret, 0o600)
    theirs = target_rights.of(target().pid)
    assert theirs.user == NOBODY
    with pytest.raises(PermissionError):
        theirs.read(secret, 10)
    assert target_rights.Rights().read(secret, 10) == b"s"
    assert secret.read_text() == "s"


@root_only
@pytest.mark.usefixtures("one_look")
def test_a_directory_that_is_not_the_targets_is_not_written_into(
    target: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HANGSCOPE_DIR of somebody's process leads root only into that user's own directory, and through no link."""
    monkeypatch.chdir(tmp_path)
    victim = tmp_path / "victim"
    (victim / "nodes/a").mkdir(parents=True)
    (victim / "nodes/a/status.json").write_text(json.dumps({"node": "a", "live": [], "ended": None}))
    os.chown(victim, 12345, 12345)
    said: list[str] = []
    incident = snapshot_job.of_process(target(HANGSCOPE_DIR=str(victim)).pid, None, said.append)
    assert incident.is_relative_to(tmp_path / "hangscope")
    assert any("belongs to another user" in line for line in said)
    assert sorted(path.name for path in victim.rglob("*")) == ["a", "nodes", "status.json"]


@root_only
def test_a_registration_speaks_for_its_writers_processes_alone(other: Path) -> None:
    """A registration that names another user's process, or another's socket, is not believed."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(other / "root.sock"))
    for name, pid in (("1.json", os.getpid()), ("2.json", 99_999_999)):
        (other / name).write_text(json.dumps({"pid": pid, "rank": 0, "socket": str(other / "root.sock")}))
        os.chown(other / name, NOBODY, NOBODY)
    (found,) = Registry(other).processes()
    listening.close()
    assert found.pid == 99_999_999
    assert found.socket is None


# ---- neighbours ------------------------------------------------------------------------------------------------------

BAD_STATUS = (
    b"", b"[]", b"5", b'{"live": 5}', b'{"live": [1, "x", null, {"rank": "a"}, {"rank": -1}]}', b"\xff\xfe",
    b"[" * 100_000,
    b'{"live": [{"rank": 0, "groups": 7, "waiting": [1]}], "captures": 3, "world_size": "many"}',
    b'{"node": "\\u001b[2J", "job": "\\u001b]\\u0007", "live": [{"rank": 1, "waiting": {"operation": "\\u001b[31m"}}]}',
    b'{"live": [{"rank": 0, "groups": [{"recorder": 1, "group": {}, "enqueued": 1e999, "completed": null}]}]}',
)  # fmt: skip


@pytest.mark.parametrize("raw", BAD_STATUS, ids=range(len(BAD_STATUS)))
def test_a_neighbours_nonsense_costs_its_part_alone(
    tmp_path: Path, raw: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a neighbour's status, stall and run files hold, ours still counts, and no escape reaches a terminal."""
    for name, content in (("ours", b'{"node": "ours", "job": "j", "live": [{"rank": 3}]}'), ("zbad", raw)):
        (tmp_path / "nodes" / name).mkdir(parents=True)
        (tmp_path / "nodes" / name / "status.json").write_bytes(content)
    (tmp_path / "stall.json").write_bytes(raw)
    (tmp_path / "run.json").write_bytes(raw)
    agents = run_directory.peers(tmp_path, tmp_path / "nodes/ours")
    assert [agent.ranks for agent in agents if agent.node == "ours"] == [(3,)]
    assert run_directory.leader(agents) is not None
    run_directory.marked(tmp_path)
    assert 3 in [line.rank for line in live_view.view(tmp_path).ranks]
    assert main(["watch", str(tmp_path), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_a_pipe_in_the_place_of_a_status_does_not_stop_the_run(tmp_path: Path) -> None:
    """Training ends, and `run` returns its status although a neighbour's files are pipes and links."""
    other = tmp_path / "run/nodes/other"
    other.mkdir(parents=True)
    for name in ("status.json", "node.json", "agent.json"):
        os.mkfifo(other / name)
    (tmp_path / "run/nodes/third").mkdir()
    (tmp_path / "run/nodes/third/status.json").symlink_to("/dev/zero")
    code = "import sys; print('trained'); sys.exit(7)"
    words = [sys.executable, "-m", "hangscope", "run", "--dir", str(tmp_path / "run"), "--node", "n1", "--"]
    begun = time.monotonic()
    done = subprocess.run([*words, sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (7, "trained\n")
    assert time.monotonic() - begun < 30


def test_run_writes_through_no_planted_link(tmp_path: Path) -> None:
    """Links in a shared directory, in the places of our folder and log, leave what they point to untouched."""
    target = tmp_path / "authorized_keys"
    target.write_text("mine\n")
    logs = tmp_path / "run/nodes/n1/logs"
    logs.mkdir(parents=True)
    (logs / "launcher.log").symlink_to(target)
    (tmp_path / "run/nodes/n1/status.json").symlink_to(target)
    words = [sys.executable, "-m", "hangscope", "run", "--dir", str(tmp_path / "run"), "--node", "n1", "--"]
    done = subprocess.run([*words, sys.executable, "-c", "print('x')"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert target.read_text() == "mine\n"
    assert "launcher.log: a link" in done.stderr


# ---- small things ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    ["diagnose {} >&-", "show {} >&-", "bundle {} -o b.tar.gz --no-verdict >&-", "env >&-", "show {} >/dev/full"],
)
def test_a_closed_stdout_is_no_traceback(words: str, tmp_path: Path) -> None:
    """Whoever closes our output, or has no room for it, gets a status and no traceback."""
    command = f"exec {sys.executable} -m hangscope {words.format(CASE)}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode in (0, 1, 2, 3)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["diagnose", "{}"], ["show", "{}"], ["diagnose", "{}", "--json"]])
def test_a_reader_that_goes_is_no_error(words: list[str], tmp_path: Path) -> None:
    """Output whose reader has gone, as under `| head`, ends the verb as a shell expects it: status 141, not a word."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "hangscope", *(word.format(CASE) for word in words)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_is_said_in_words(tmp_path: Path) -> None:
    """Unpacking where there is no room names the directory, leaves nothing behind, and shows no traceback."""
    write_bundle(CASE, tmp_path / "x.tar.gz")
    words = f"ulimit -f 1; exec {sys.executable} -m hangscope bundle {tmp_path}/x.tar.gz --unpack {tmp_path}/out"
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"error: {tmp_path}/out: File too large" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.tar.gz"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_half_written_file(tmp_path: Path, number: signal.Signals) -> None:
    """A bundle that is ended in the middle, or whose terminal went, leaves neither itself nor a part of itself."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rank_0.log").write_bytes(os.urandom(1 << 20).hex().encode() * 20)
    words = [sys.executable, "-m", "hangscope", "bundle", str(tmp_path / "in"), "-o", str(tmp_path / "b.tar.gz")]
    process = subprocess.Popen([*words, "--no-verdict"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 20
    while time.monotonic() < until and not list(tmp_path.glob(".*.part")):
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(timeout=20) in (128 + number, 0)
    assert not list(tmp_path.glob(".*.part"))


def test_diagnose_says_where_a_bundle_differs_from_its_checksums(tmp_path: Path) -> None:
    """A file that was changed in a bundle is a gap that names it."""
    made = write_bundle(CASE, tmp_path / "x.tar.gz")
    with tarfile.open(made.path) as source, tarfile.open(tmp_path / "y.tar.gz", "w:gz") as changed:
        for member in source.getmembers():
            data = source.extractfile(member)
            assert data is not None
            raw = data.read()
            if member.name.endswith("rank_0.log"):
                raw = raw[:-1] + b"#"
            changed.addfile(member, io.BytesIO(raw))
    job = hangscope.load(tmp_path / "y.tar.gz")
    assert [gap.why for gap in job.gaps if "rank_0.log" in gap.what] == [
        "not the file that its manifest lists (checksum)"
    ]
    assert not [gap for gap in hangscope.load(made.path).gaps if "checksum" in gap.why]


def test_long_names_of_files_in_a_dump_cost_little(tmp_path: Path) -> None:
    """A dump of 60 kB whose frames share one endless file name is diagnosed in seconds."""
    name = "/lib/python3." * 4500
    frames = [{"name": "f", "filename": name, "line": line} for line in range(60)]
    entries = [
        {"frames": frames, "record_id": n, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": n,
         "op_id": n, "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce", "time_created_ns": 10**18 + n,
         "state": "started", "input_sizes": [[4]], "output_sizes": [[4]], "input_dtypes": ["Float"],
         "output_dtypes": ["Float"],
         "is_p2p": False, "retired": False, "timeout_ms": 1000, "time_discovered_started_ns": None,
         "time_discovered_completed_ns": None}
        for n in range(100)
    ]  # fmt: skip
    for rank in range(2):
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        value = {"version": "2.10", "entries": entries[: 100 - rank], "pg_config": config}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(value, protocol=2))
    begun = time.process_time()
    assert hangscope.diagnose(hangscope.load(tmp_path)).hang
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("ended", [1e308, -1e308, 1e18, 10**30, "1e308", -5])
def test_a_time_that_cannot_be_is_none(tmp_path: Path, ended: object) -> None:
    """Numbers of a roster that are no times, though they are numbers, cost the field alone."""
    shutil.copytree(CASE.parent / "alltoall", tmp_path / "case")
    roster = tmp_path / "case/roster.json"
    rows = json.loads(roster.read_text())
    rows[0]["ended_at"] = ended
    roster.write_text(json.dumps(rows))
    assert hangscope.diagnose(hangscope.load(tmp_path / "case")).summary


@root_only
def test_a_folder_that_may_be_listed_and_not_entered_costs_its_own_files(tmp_path: Path) -> None:
    """Of mode 0444: a bundle has the others and a gap for these, and so has what is read."""
    open_to_all(tmp_path)
    shutil.copytree(CASE, tmp_path / "case")
    closed = tmp_path / "case/closed"
    closed.mkdir()
    (closed / "rank_7.log").write_text("RuntimeError: x\n")
    out = tmp_path / "out"
    out.mkdir()
    for place in (closed, out):
        os.chown(place, NOBODY, NOBODY)
    closed.chmod(0o444)

    def act() -> str:
        made = write_bundle(tmp_path / "case", out / "b.tar.gz")
        job = hangscope.load(tmp_path / "case")
        gaps = [gap.what for gap in job.gaps if "rank_7.log" in gap.what]
        return f"{[missing.what for missing in made.left_out]} {len(gaps)} {len(job.ops) > 0}"

    assert as_nobody(act) == "['closed/rank_7.log'] 1 True"
