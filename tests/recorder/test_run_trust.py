"""`run` and `watch` among neighbours who mean no good: the command's status, the verdict and the terminal stay ours."""

from __future__ import annotations

import io
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hangscope.cli.main import main
from hangscope.cli.watch_screen import screen
from hangscope.cli.watch_terminal import WatchChoice
from hangscope.cli.watch_text import as_text
from hangscope.cli.watching_options import say
from hangscope.errors import SettingsError
from hangscope.incident import manifest
from hangscope.incident.node_dir import NodeDir
from hangscope.recorder.agent import diagnose_process, incident_manifest, never_seen, on_hang
from hangscope.recorder.agent.dump_watch import DumpWatch
from hangscope.recorder.agent.metrics import Metrics, Numbers
from hangscope.recorder.agent.node_agent import AgentOptions
from hangscope.recorder.capture.capture_node import NodeCapture
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.launch import job_environment, relay, run_places
from hangscope.recorder.launch.run_job import RunOptions, run
from hangscope.recorder.rundir import live_view, peer_files, run_directory, tidy
from hangscope.recorder.rundir.job_identity import identify
from hangscope.recorder.setup import blackbox_library, settings
from hangscope.safeio.safe_files import Patience, Refused
from hangscope.sources.nccl_ras import capture as ras_question
from kits import hung_mount
from kits.agent_parts import AgentParts
from kits.json_fields import changed, places

NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user beside")
needs_fuse = pytest.mark.skipif(not hung_mount.possible(), reason="needs root and FUSE, for a file system that hangs")
PYTHON = (sys.executable, "-c")


def started(*words: str, cwd: Path, seconds: float = 60, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hangscope", "run", *words],
        cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, timeout=seconds, errors="replace",
    )  # fmt: skip


# ---- statuses --------------------------------------------------------------------------------------------------------

WHOLE = {
    "schema": "hangscope.status/1", "node": "b", "job": "j", "attempt": "0", "at": 1.0, "agent_pid": 5,
    "command_pid": 6, "sockets": "/tmp/x", "world_size": 4, "local_world_size": 2, "nodes": 2, "threshold_s": 30.0,
    "poll_s": 1.0, "ended": None, "pause_ago_s": None,
    "captures": [{"incident": "/i", "reason": "stall", "detail": "d", "at": 1.0}],
    "live": [{
        "rank": 2, "pid": 7, "local_rank": 0, "state": "S", "exit_status": None, "server_answers": True,
        "last_poll_at": 1.0, "rate": 1.0, "meets_at": "a:1",
        "waiting": {"group": "g", "name": "0", "operation": "all_reduce #1", "seq": 3, "for_s": 40.0},
        "groups": [
            {"recorder": "gloo", "group": "g", "name": "0", "size": 4, "enqueued": 3, "completed": 2, "still_s": 4.0},
        ],
    }],
}  # fmt: skip
DEEP: object = 0
for _ in range(200):
    DEEP = [DEEP]
NONSENSE: tuple[object, ...] = (
    None, 5, -1, 1e308, float("nan"), float("inf"), -float("inf"), "", "x" * 100_000, "\x1b[2J\x07\u202e\u2066\x9b\n\r",
    [], {}, [None, 5, "x", [], {}], {"a": {}}, True, "²", 10**30, -(10**30), 4e9, DEEP, "\ud800",
)  # fmt: skip


def test_no_field_of_a_neighbour_costs_our_part(tmp_path: Path) -> None:
    """Every field of a status and a stall with a value of every wrong kind: ours counts, and nothing raw is shown."""
    tried = 0
    for name in ("a", "b"):
        (tmp_path / "nodes" / name).mkdir(parents=True)
    (tmp_path / "nodes/a/agent.json").write_text("{}")
    ours = {**WHOLE, "node": "a", "live": [{"rank": 0, "pid": 3, "state": "S", "meets_at": "a:1"}]}
    (tmp_path / "nodes/a/status.json").write_text(json.dumps(ours))
    for at in places(WHOLE):
        for new in NONSENSE:
            raw = json.dumps(changed(WHOLE, at, new))
            (tmp_path / "nodes/b/status.json").write_text(raw)
            agents = run_directory.peers(tmp_path, tmp_path / "nodes/a")
            assert (0,) in [agent.ranks for agent in agents]
            assert run_directory.leader(agents) == tmp_path / "nodes/a"
            run_directory.sees_all(agents)
            never_seen.still_starting(agents)
            json.dumps(never_seen.odd_addresses(agents))
            shown = as_text(live_view.view(tmp_path), WatchChoice(), 200)
            assert all(char.isprintable() for char in shown.replace("\n", ""))
            tried += 1
    for field in ("by", "at", "reason", "detail"):
        for new in NONSENSE:
            (tmp_path / "stall.json").write_text(json.dumps({"by": "b", "reason": "stall", "detail": "d", field: new}))
            asked = run_directory.marked(tmp_path)
            assert asked is not None
            assert (asked.by + asked.reason + asked.detail).isprintable()
            tried += 1
    assert tried > 700


@root_only
def test_a_stranger_in_the_directory_is_no_node_of_the_job(tmp_path: Path) -> None:
    """Another user's status neither takes the verdict from us nor holds a capture back: a job is one user's."""
    for name, rank in (("ours", 3), ("theirs", 0)):
        (tmp_path / "nodes" / name).mkdir(parents=True)
        (tmp_path / "nodes" / name / "agent.json").write_text("{}")
        state = {"node": name, "live": [{"rank": rank}], "pause_ago_s": 0.0, "world_size": 1}
        (tmp_path / "nodes" / name / "status.json").write_text(json.dumps(state))
    os.chown(tmp_path / "nodes/theirs/status.json", NOBODY, NOBODY)
    own = tmp_path / "nodes/ours"
    agents = run_directory.peers(tmp_path, own)
    assert [agent.node for agent in agents] == ["ours"]
    assert run_directory.leader(agents) == own
    assert [state.node for _, state in run_directory.statuses(tmp_path, own)] == ["ours"]
    assert len(run_directory.statuses(tmp_path)) == 2  # `watch` shows whoever is there


def test_ten_thousand_neighbours_cost_neither_time_nor_memory(tmp_path: Path) -> None:
    """A directory full of large statuses: the look at it ends in time, our own is in it, and memory stays small."""
    row = {"state": "S", "groups": [{"recorder": "g", "group": "g", "enqueued": 1, "completed": 1, "still_s": 1}] * 8}
    large = json.dumps({"node": "x", "live": [{"rank": rank, **row} for rank in range(4096)]})
    first = tmp_path / "nodes/aa0"
    for number in range(10_000):
        (tmp_path / f"nodes/aa{number}").mkdir(parents=True)
        if number == 0:
            (first / "status.json").write_text(large)
        else:
            os.link(first / "status.json", tmp_path / f"nodes/aa{number}/status.json")
    own = tmp_path / "nodes/zz"
    own.mkdir()
    (own / "agent.json").write_text("{}")
    (own / "status.json").write_text(json.dumps({"node": "zz", "live": [{"rank": 1}]}))
    before, begun, used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic(), time.process_time()
    found = run_directory.statuses(tmp_path, own)
    assert "zz" in [state.node for _, state in found]
    time.sleep(1.0)
    assert time.process_time() - used < 5
    assert time.monotonic() - begun < 8
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10


def test_watch_of_a_job_where_all_wait_for_all_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A status made so that every rank waits for other ones costs seconds, not hours."""
    rows = [
        {
            "rank": rank, "waiting": {"group": "g", "operation": "x", "seq": rank + 1, "for_s": 9.0},
            "groups": [
                {"recorder": "r", "group": group, "enqueued": rank, "completed": 0, "still_s": 1.0}
                for group in ("g", *(f"{rank}.{number}" for number in range(8)))
            ],
        }
        for rank in range(3000)
    ]  # fmt: skip
    (tmp_path / "nodes/a").mkdir(parents=True)
    (tmp_path / "nodes/a/status.json").write_text(json.dumps({"node": "a", "live": rows}))
    used = time.process_time()
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert time.process_time() - used < 5
    assert "3000 ranks" in capsys.readouterr().out


def test_waiting_for_many_neighbours_has_one_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours whose parts take long to look at share one deadline: the verdict does not wait for each of them."""
    monkeypatch.setattr("hangscope.recorder.agent.conclusions.NODES_S", 1.0)
    for number in range(50):
        folder = tmp_path / f"run/nodes/n{number}"
        folder.mkdir(parents=True)
        (folder / "agent.json").write_text("{}")
        (folder / "status.json").write_text(json.dumps({"node": f"n{number}", "live": [{"rank": number}]}))
    monkeypatch.setattr(peer_files, "complete", lambda *_: time.sleep(0.3) or True)
    conclusions = AgentParts(tmp_path / "run").conclusions
    begun = time.monotonic()
    conclusions._await_others(tmp_path / "run")
    assert time.monotonic() - begun < 4


def test_a_terabyte_beside_us_does_not_delay_the_manifest(tmp_path: Path) -> None:
    """What a neighbour puts there, of any size, costs its own line: it is named as not listed, and the rest is."""
    (tmp_path / "nodes/b").mkdir(parents=True)
    (tmp_path / "nodes/b/rank_0.log").touch()
    os.truncate(tmp_path / "nodes/b/rank_0.log", 1 << 40)
    (tmp_path / "nodes/b/node.json").write_text("{}")
    begun = time.monotonic()
    built = manifest.build(tmp_path, seconds=5.0)
    assert time.monotonic() - begun < 5
    assert list(built.files) == ["nodes/b/node.json"]
    assert [gap.what for gap in built.gaps] == ["nodes/b/rank_0.log"]


def test_a_manifest_that_somebody_broke_costs_no_verdict(tmp_path: Path) -> None:
    """Between writing a manifest and naming the verdict in it, somebody may break it: the verdict is given, and
    what cannot be read is not written over."""
    broken = tmp_path / "incident.json"
    broken.write_text("{broken")
    incident_manifest.add_files(tmp_path, "verdict.json")
    incident_manifest.refresh(tmp_path)
    incident_manifest.note_recovery(tmp_path, 3.0)
    assert broken.read_text() == "{broken"


def test_no_link_among_our_logs_is_copied(tmp_path: Path) -> None:
    """A link or a pipe that somebody of the group put among our logs brings nothing of ours into a later incident."""
    (tmp_path / "id_rsa").write_text("private key")
    logs = tmp_path / "run/nodes/n0/logs"
    logs.mkdir(parents=True)
    (logs / "evil.log").symlink_to(tmp_path / "id_rsa")
    os.mkfifo(logs / "pipe.log")
    (logs / "launcher.log").write_text("ours")
    later = tmp_path / "run/hang-2"
    node_dir = NodeDir(later, later / "nodes/n0")
    taken = NodeCapture(node_dir, NodeFacts("n0", "j", "0", 0.0), (), "stall", "", threading.Event())
    begun = time.monotonic()
    AgentParts(tmp_path / "run").captures._copy_run_files(taken)
    assert time.monotonic() - begun < 5
    assert [path.read_text() for path in later.rglob("*") if path.is_file()] == ["ours"]


# ---- dumps -----------------------------------------------------------------------------------------------------------


def test_a_file_in_tmp_is_no_dump_of_ours(tmp_path: Path) -> None:
    """Where dumps go to /tmp, a file of another name, of another user, or a link there makes nobody capture."""
    dumps = DumpWatch(tmp_path / "run/nodes/a", time.time())
    dumps.prefixes = {str(tmp_path / "nccl_trace_rank_")}
    (tmp_path / "somebody").write_text("x")
    (tmp_path / "nccl_trace_rank_7").symlink_to("/etc/passwd")
    (tmp_path / "nccl_trace_rank_6").write_text("x")
    if os.geteuid() == 0:
        os.chown(tmp_path / "nccl_trace_rank_6", NOBODY, NOBODY)
        assert dumps.fresh([]) == []
    (tmp_path / "nccl_trace_rank_0").write_text("x")
    assert tmp_path / "nccl_trace_rank_0" in dumps.fresh([])
    assert dumps.fresh([]) == []


# ---- RAS -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "here"),
    (
        ("localhost", True), ("127.0.0.1", True), ("::1", None), ("127.8.8.8", True), ("169.254.169.254", False),
        ("10.255.255.1", False), ("metadata.google.internal", False), ("", False), ("a b", False),
        ("0x7f000001", False),
    ),
)  # fmt: skip
def test_ras_is_asked_on_this_machine_alone(host: str, here: bool | None) -> None:
    """NCCL_RAS_ADDR of a process is no reason to connect to another machine, nor to ask a name server."""
    assert here is None or ras_question.is_this_machine(host) is here


def test_a_ras_server_that_drips_keeps_nobody() -> None:
    """A byte now and then is no answer: the question ends at its deadline."""
    listening = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        with suppress(OSError):
            connection, _ = listening.accept()
            connection.sendall(b"SERVER PROTOCOL 2\nOK\nOK\n")
            while True:
                connection.sendall(b"x")
                time.sleep(0.1)

    threading.Thread(target=drip, daemon=True).start()
    begun = time.monotonic()
    answer, _, why = ras_question.status(listening.getsockname()[:2], 2.0)
    listening.close()
    assert answer is None
    assert why
    assert time.monotonic() - begun < 4


# ---- the run's directory ---------------------------------------------------------------------------------------------


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A directory that everybody may write into, as a shared working directory is, and beside it one of ours alone."""
    for place in (tmp_path, *tmp_path.parents):
        if place.stat().st_uid == os.geteuid() and place not in (Path("/"), Path("/tmp")):
            os.chmod(place, 0o755)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "private").mkdir(mode=0o700)
    return shared


@root_only
@pytest.mark.parametrize("given", [True, False])
def test_a_link_of_a_strangers_is_no_directory_for_a_run(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    """--dir, or ./hangscope, that leads into a private directory of ours: the run goes elsewhere, and says so."""
    monkeypatch.chdir(theirs)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    link = theirs / "hangscope"
    link.symlink_to(tmp_path / "private")
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    said: list[str] = []
    identity = identify({}, job="j", attempt="0", node="n")
    folders, _ = run_places.claim(link if given else None, identity, os.environ, said.append)
    assert "another user's link" in said[0]
    assert not list((tmp_path / "private").iterdir())
    assert folders.own.is_dir()


@root_only
def test_a_directory_of_a_strangers_is_not_taken_by_default(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody named must at least be nobody else's: another name is taken beside it."""
    monkeypatch.chdir(theirs)
    (theirs / "hangscope/j/0").mkdir(parents=True)
    os.chown(theirs / "hangscope/j/0", NOBODY, NOBODY)
    folders, _ = run_places.claim(None, identify({}, job="j", attempt="0", node="n"), os.environ, print)
    assert folders.root == theirs / "hangscope/j/0.2"
    assert not list((theirs / "hangscope/j/0").iterdir())


@pytest.mark.parametrize("which", ["shared", "shared/hangscope", "shared/hangscope/j", "shared/hangscope/j/0"])
def test_what_a_run_writes_stays_where_it_began(theirs: Path, tmp_path: Path, which: str) -> None:
    """Any directory above is exchanged for a link during the run: status, captures and logs go on where they were."""
    private = tmp_path / "private"
    for inside in ("hangscope/j/0/nodes/n/logs", "j/0/nodes/n/logs", "0/nodes/n/logs", "nodes/n/logs"):
        (private / inside).mkdir(parents=True)
    before = sorted(private.rglob("*"))
    code = "import time; time.sleep(1.5); print('late', flush=True)"
    root = theirs / "hangscope/j/0"
    words = [sys.executable, "-m", "hangscope", "run", "--keep", "--dir", str(root), "--node", "n", "--"]
    with subprocess.Popen([*words, *PYTHON, code], cwd="/", stdout=subprocess.DEVNULL) as job:
        while not (root / "nodes/n/status.json").exists():
            time.sleep(0.05)
        (tmp_path / which).rename(tmp_path / "moved")
        (tmp_path / which).symlink_to(private)
        assert job.wait(60) == 0
    assert sorted(private.rglob("*")) == before
    moved = Path(str(root).replace(str(tmp_path / which), str(tmp_path / "moved")))
    assert json.loads((moved / "nodes/n/status.json").read_text())["ended"] is not None
    assert "late" in (moved / "nodes/n/logs/launcher.log").read_text()


def test_what_is_tidied_up_is_what_was_made(theirs: Path, tmp_path: Path) -> None:
    """A run without trouble takes its directory away; a link that somebody put in its place leads to nothing."""
    private = tmp_path / "private"
    (private / "nodes/n").mkdir(parents=True)
    (private / "nodes/n/agent.json").write_text("{}")
    with ExitStack() as kept:
        folders, _ = run_places.claim(
            theirs / "run", identify({}, job="j", attempt="0", node="n"), os.environ, print, kept
        )
        folders.write("status.json", {"node": "n", "live": [], "ended": 0})
        folders.root.rename(theirs / "moved")
        folders.root.symlink_to(private)
        tidy.remove(folders.root)
    assert (private / "nodes/n/agent.json").exists()
    assert not (theirs / "moved/nodes/n").exists()


# ---- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_replace_and_remove_nothing_but_metrics(tmp_path: Path) -> None:
    """A slip may name any file of ours: one without metrics in it is left alone."""
    mine = tmp_path / "authorized_keys"
    mine.write_text("mine\n")
    done = started("--metrics", str(mine), "--", *PYTHON, "import time; time.sleep(3)", cwd=tmp_path)
    assert done.returncode == 0
    assert mine.read_text() == "mine\n"
    assert "no metrics" in done.stderr
    ours = Metrics({"job": "j"}, file=tmp_path / "ours.prom")
    ours.publish(Numbers())
    again = Metrics({"job": "j"}, file=tmp_path / "ours.prom")
    again.publish(Numbers())
    assert (tmp_path / "ours.prom").read_text().startswith("# HELP")
    (tmp_path / "ours.prom").write_text("exchanged")
    again.publish(Numbers())
    again.close()
    assert (tmp_path / "ours.prom").read_text() == "exchanged"
    with pytest.raises(Refused):
        Metrics({"job": "j"}, file=mine)


def test_a_crowd_at_the_metrics_port_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that say nothing, or a byte at a time, take a few threads for a few seconds; others are answered."""
    monkeypatch.setattr("hangscope.recorder.agent.metrics_server.ANSWER_S", 1.5)
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("a name server was asked"))
    metrics = Metrics({"job": 'a"b\n', "node": "\\"}, port="0")
    assert metrics.address is not None
    before, begun = threading.active_count(), time.monotonic()
    crowd = [socket.create_connection(metrics.address, timeout=5) for _ in range(12)]
    done = threading.Event()

    def drip() -> None:
        while not done.wait(0.2):
            for each in crowd:
                try:
                    each.sendall(b"G")
                except OSError:
                    pass

    threading.Thread(target=drip, daemon=True).start()
    time.sleep(0.5)
    assert threading.active_count() - before < 24
    while True:
        try:
            body = urllib.request.urlopen("http://{}:{}/metrics".format(*metrics.address), timeout=2).read().decode()
            break
        except OSError:
            assert time.monotonic() - begun < 10
    assert r'job="a\"b\n",node="\\"' in body
    assert all(line.startswith(("#", "hangscope_")) for line in body.splitlines())
    done.set()
    with pytest.raises(OSError, match=r"431|414|400|reset|closed|refused|HTTP"):
        urllib.request.urlopen("http://{}:{}/{}".format(*metrics.address, "x" * 100_000), timeout=5)
    ending = time.monotonic()
    metrics.close()
    assert time.monotonic() - ending < 3
    for each in crowd:
        each.close()


def test_connections_that_say_nothing_do_not_starve_the_metrics_port() -> None:
    """However many are opened, and opened again, whoever asks is answered at once: the oldest of them goes."""
    metrics = Metrics({"job": "j"}, port="0")
    assert metrics.address is not None
    crowd: list[socket.socket] = []
    begun = time.monotonic()
    for _ in range(10):
        crowd += [socket.create_connection(metrics.address, timeout=5) for _ in range(24)]
        body = urllib.request.urlopen("http://{}:{}/metrics".format(*metrics.address), timeout=5).read()
        assert body.startswith(b"# HELP")
    assert time.monotonic() - begun < 5
    metrics.close()
    for each in crowd:
        each.close()


@root_only
def test_a_planted_folder_for_black_boxes_is_said(theirs: Path) -> None:
    """Somebody else's directory in the place of ours keeps the black box out; `run` says so."""
    top = theirs / f"hangscope-{os.getuid()}"
    top.mkdir()
    os.chown(top, NOBODY, NOBODY)
    plan = settings.plan(
        torch_version="2.8", backend="nccl", directory=theirs, job="j", attempt="0", host="n", environ={}
    )
    variables = {**plan.variables, blackbox_library.FOLDER: f"{top}/j/n/"}
    planted = replace(plan, variables=variables, directories=(Path(f"{top}/j/n"),))
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_environment, "_plan", lambda *_, **__: planted)
        identity = identify({}, job="j", attempt="0", node="n")
        words = ["true"]
        job_environment.with_recorder(
            words, identity, theirs / "n", {}, entries=None, fix=False, timing=False, say=said.append
        )
    assert any("belongs to another user" in line for line in said)


def test_no_name_of_a_folder_or_node_moves_the_cursor(tmp_path: Path) -> None:
    """A status without a node's name is called by its folder, and that by whoever made it."""
    folder = tmp_path / "nodes" / "\x1b[2J\u202eevil\x07"
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(json.dumps({**WHOLE, "node": ""}))
    now = live_view.view(tmp_path)
    shown = as_text(now, WatchChoice(everything=True), 200)
    assert all(char.isprintable() for char in shown.replace("\n", ""))
    console = Console(file=io.StringIO(), force_terminal=True, width=200, height=60, color_system=None)
    console.print(screen(now, WatchChoice(everything=True), console.size))
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[2J" not in drawn
    assert "\u202e" not in drawn


def test_the_path_of_a_snapshot_is_printed_without_its_signs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """HANGSCOPE_DIR of somebody's process is their word, and becomes the incident's path."""
    monkeypatch.setattr("hangscope.recorder.capture.snapshot_job.of_run", lambda *_, **__: tmp_path / "\x1b[2J\x07")
    assert main(["snapshot", "--no-diagnose", str(tmp_path)]) == 0
    assert capsys.readouterr().out.rstrip("\n").isprintable()


@needs_fuse
def test_metrics_on_a_silent_file_system_cost_the_metrics(tmp_path: Path) -> None:
    """A directory for metrics that does not answer keeps the training neither from starting nor from ending."""
    place = tmp_path / "hung"
    place.mkdir()
    with hung_mount.silent(place):
        begun = time.monotonic()
        done = started("--metrics", str(place / "x"), "--", *PYTHON, "print('trained')", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "trained\n")
        assert time.monotonic() - begun < 20


@needs_fuse
def test_a_silent_directory_delays_the_training_by_seconds(tmp_path: Path) -> None:
    """A --dir that does not answer is given up in some ten seconds; one that is slow and alive is not."""
    place = tmp_path / "hung"
    place.mkdir()
    with hung_mount.silent(place):
        begun = time.time()
        done = started("--dir", str(place / "run"), "--", *PYTHON, "import time; print(time.time())", cwd=tmp_path)
        assert done.returncode == 0
        assert float(done.stdout) - begun < 14
    slow = Patience(10.0, 1.0)
    assert slow.ask("slow", lambda: [time.sleep(0.3) for _ in range(8)]) is not None
    begun = time.time()
    with pytest.raises(Refused, match="no answer within"):
        slow.ask("hung", lambda: time.sleep(5))
    assert time.time() - begun < 3


@needs_fuse
def test_a_temporary_directory_that_falls_silent_does_not_keep_run(tmp_path: Path) -> None:
    """Where the place for sockets and pipes does not answer any more, the command's status comes back all the same."""
    place = tmp_path / "tmp"
    place.mkdir()
    environ = {"TMPDIR": str(place), "XDG_RUNTIME_DIR": str(place)}
    process = subprocess.Popen(
        [sys.executable, "-m", "hangscope", "run", "--", *PYTHON, "import time; time.sleep(4); raise SystemExit(5)"],
        cwd=tmp_path, env={**os.environ, **environ},
    )  # fmt: skip
    time.sleep(2.5)
    with hung_mount.silent(place):
        assert process.wait(timeout=60) == 5


def test_a_job_that_prints_every_rank_there_is_keeps_its_log(tmp_path: Path) -> None:
    """Lines of a million ranks do not take a million files, and none is lost."""
    log = relay.RankLogs(tmp_path / "logs", "launcher.log")
    for number in range(3000):
        log.add(0, b"[rank%d]: x\n" % number)
    log.flush()
    assert log.problem == ""
    files = list((tmp_path / "logs").iterdir())
    assert len(files) <= relay.MOST_LOGS + 1
    assert sum(path.read_bytes().count(b"\n") for path in files) == 3000


# ---- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", ("nan", "inf", "-1", "0"))
def test_a_threshold_that_never_comes_is_refused(seconds: str) -> None:
    """`stall-after = nan` would watch for ever and never see a hang."""
    with pytest.raises(SettingsError, match="stall-after"):
        options = RunOptions(agent=AgentOptions(stall_after=float(seconds)))
        run(["true"], options, environ=os.environ, say=lambda _: None)


NAMES = (
    "..",
    "../../x",
    "a/b",
    "/etc",
    "a\nb",
    "\x1b[2J",
    "\u202eabc",
    "x" * 300,
    "-rf",
    "$(touch x)",
    "a;b",
    "²",
    " ",
)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_of_any_kind_stays_a_name(name: str, tmp_path: Path) -> None:
    """Job and node of any name: the command runs, its status comes back, and nothing lies where it should not."""
    work = tmp_path / "work"
    work.mkdir()
    words = ("--keep", "--job", name, "--node", name, "--metrics", str(work), "--", *PYTHON, "import sys; sys.exit(3)")
    done = started(*words, cwd=work, RANK=name, WORLD_SIZE=name)
    assert done.returncode == 3
    assert done.stderr.replace("\n", "").isprintable()
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    assert {path.name for path in work.iterdir()} <= {"hangscope"}
    assert len(list(work.glob("hangscope/*/*/nodes/*/status.json"))) == 1


def test_what_run_says_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """A watchdog's line, a file's name or a command's last words are shown without their control characters."""
    say("PyTorch wrote \x1b[2J\x07\u202e.bin\nsecond")
    shown = capsys.readouterr().err
    assert shown.replace("\n", "").isprintable()
    assert shown.count("hangscope: ") == 2


def test_what_a_command_is_told_is_data(tmp_path: Path) -> None:
    """--on-hang: a path and a summary full of shell signs, quotes and NULs reach the command as they are."""
    incident = tmp_path / "$(touch stolen);`touch stolen`'\"\n"
    incident.mkdir()
    told = tmp_path / "told"
    value = {
        "outcome": "hang",
        "kind": "$(touch stolen)",
        "summary": "'; touch stolen; '\0",
        "culprits": [{"rank": "`x`"}],
    }
    command = (
        f'cd {tmp_path}; printf "%s|%s|%s" "$HANGSCOPE_INCIDENT" "$HANGSCOPE_SUMMARY" "$HANGSCOPE_CULPRITS" > told'
    )
    assert on_hang.run_command(command, incident, None, value) == ""
    assert told.read_text() == f"{incident}|'; touch stolen; '?|`x`"
    assert not list(tmp_path.rglob("stolen"))
    for culprits in (None, 5, "x", [None, 5, []], {"rank": 1}):
        assert on_hang.run_command("true", incident, None, {"culprits": culprits}) == ""


def test_modules_beside_the_job_are_none_of_ours(tmp_path: Path) -> None:
    """The diagnosis of a run takes no module from the working directory, on Python 3.10 neither."""
    (tmp_path / "click.py").write_text("open('stolen', 'w')\n")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [*diagnose_process.COMMAND, "--version"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("hangscope ")
    assert not (tmp_path / "stolen").exists()


@pytest.mark.parametrize("words", (["doctor", "--json", "--torch", "2.8"], ["doctor", "--torch", "2.8"], ["env"]))
def test_what_a_variable_holds_is_shown_without_its_signs(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Colours, bells and signs that turn the direction of writing do not reach a terminal from the environment."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "NCCL_DEBUG",
        "NCCL_DEBUG_FILE",
        "TORCH_FR_BUFFER_SIZE",
        "NCCL_RAS_ADDR",
        "WORLD_SIZE",
        "SLURM_JOB_ID",
    ):
        monkeypatch.setenv(name, f"{name}\x1b[2J\x07\u202e\x9b²")
    assert main(words) in (0, 1, 2)
    shown = capsys.readouterr()
    assert (shown.err + (shown.out if words[0] == "doctor" else "")).replace("\n", "").isprintable()
