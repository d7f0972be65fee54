"""`hangscope run` leaves the command alone: same output, same exit status, same signals, also when hangscope dies."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangscope.errors import LaunchError
from hangscope.recorder.launch import run_job

from .conftest import SOURCE, Started, Starter, hear_signals, node_file, processes_with, rank_row


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(0)", 0), ("raise SystemExit(37)", 37)])
def test_the_exit_status_is_the_commands_own(start: Starter, tmp_path: Path, code: str, status: int) -> None:
    """What the command returns is what `run` returns."""
    assert start.run(tmp_path / "i", *python(code)).wait(20) == status


def test_a_command_that_dies_of_a_signal_gives_what_a_shell_gives(start: Starter, tmp_path: Path) -> None:
    """128 + the signal's number."""
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert start.run(tmp_path / "i", *python(code)).wait(20) == 128 + signal.SIGSEGV


def test_output_passes_through_byte_by_byte(start: Starter, tmp_path: Path) -> None:
    """stdout and stderr stay two streams, and no byte of either changes, whatever the bytes are."""
    code = """
import os
os.write(1, bytes(range(256)) * 300)
os.write(2, b'no newline at the end, \\xff\\x00 in the middle')
"""
    started = start.run(tmp_path / "i", *python(code))
    assert started.wait(20) == 0
    assert (started.folder / "out").read_bytes() == bytes(range(256)) * 300
    assert (started.folder / "err").read_bytes() == b"no newline at the end, \xff\x00 in the middle"


def test_each_ranks_lines_are_kept_in_its_own_file(start: Starter, tmp_path: Path) -> None:
    """Lines that name their rank go to that rank's copy, the others to the launcher's."""
    code = "print('hello'); print('[rank3]: Traceback'); print('[rank12]:[E1115 00:00:00] x'); print('[rank3]: more')"
    started = start.run(tmp_path / "i", *python(code), options=("--node", "n1", "--keep"))
    assert started.wait(20) == 0
    logs = tmp_path / "i" / "nodes" / "n1" / "logs"
    assert (logs / "launcher.log").read_text() == "hello\n"
    assert (logs / "rank_3.log").read_text() == "[rank3]: Traceback\n[rank3]: more\n"
    assert (logs / "rank_12.log").read_text() == "[rank12]:[E1115 00:00:00] x\n"


def test_a_command_that_is_one_rank_has_its_whole_output_kept_as_that_rank(start: Starter, tmp_path: Path) -> None:
    """With RANK in the environment of `run`, everything the command prints is that rank's."""
    started = start.run(tmp_path / "i", *python("print('step 1')"), options=("--node", "n1", "--keep"), RANK="5")
    assert started.wait(20) == 0
    assert (tmp_path / "i" / "nodes" / "n1" / "logs" / "rank_5.log").read_text() == "step 1\n"


def test_standard_input_reaches_the_command(tmp_path: Path) -> None:
    """What is piped into `run` is piped into the command."""
    head = [sys.executable, "-m", "hangscope", "run", "--dir", str(tmp_path / "i"), "--"]
    done = subprocess.run(
        [*head, *python("print(input()[::-1])")],
        input=b"abc\n",
        capture_output=True,
        timeout=20,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.stdout == b"cba\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_handed_on(start: Starter, tmp_path: Path, number: signal.Signals) -> None:
    """A signal to `run` arrives at the command, once, and the command decides what becomes of it."""
    code = f"""
import signal, sys, time
seen = []
signal.signal({int(number)}, lambda *_: seen.append(1))
print('ready', flush=True)
end = time.time() + 10
while not seen and time.time() < end:
    time.sleep(0.05)
time.sleep(0.3)
sys.exit(40 + len(seen))
"""
    started = start.run(tmp_path / "i", *python(code))
    started.until(lambda: "ready" in started.out, 10, "start")
    started.process.send_signal(number)
    assert started.wait(20) == 41


@pytest.mark.parametrize(("handler", "status"), [("lambda *_: seen.append(1)", 41), (None, 40)])
def test_an_ignored_signal_is_the_commands_to_hear(
    start: Starter, tmp_path: Path, handler: str | None, status: int
) -> None:
    """Under `nohup` or a script's `&`, a command that handles SIGINT all the same gets it; another goes on."""
    code = f"""
import signal, sys, time
seen = []
{f"signal.signal(signal.SIGINT, {handler})" if handler else ""}
print('ready', flush=True)
end = time.time() + 2
while not seen and time.time() < end:
    time.sleep(0.05)
sys.exit(40 + len(seen))
"""
    words = ("sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "hangscope", "run", "--dir")
    started = start(*words, tmp_path / "i", "--", *python(code))
    started.until(lambda: "ready" in started.out, 10, "start")
    started.process.send_signal(signal.SIGINT)
    assert started.wait(20) == status


def test_a_command_that_does_not_exist_is_an_error_with_a_hint(start: Starter, tmp_path: Path) -> None:
    """127, and no traceback."""
    started = start.run(tmp_path / "i", "no-such-program")
    assert started.wait(20) == 127
    assert started.err.startswith("error: no-such-program: command not found\nhint: ")


def test_a_job_of_slurm_without_an_environment_is_told_how_to_get_one(tmp_path: Path) -> None:
    """sbatch --export=NONE takes PATH away: the hint names the option that gives it back."""
    with pytest.raises(LaunchError, match="command not found") as raised:
        options = run_job.RunOptions(tmp_path)
        run_job.run(["torchrun-x"], options, environ={"SLURM_EXPORT_ENV": "NONE", "PATH": "/bin"}, say=print)
    assert "--export=ALL" in str(raised.value.hint)


WRITER = """
import os, sys, time
for number in range(40):
    print('line', number, flush=True)
    print('other', number, file=sys.stderr, flush=True)
    time.sleep(0.1)
open(sys.argv[1], 'w').write('finished')
"""


def test_the_command_goes_on_when_hangscope_is_killed(start: Starter, tmp_path: Path) -> None:
    """SIGKILL of `run` in the middle: the command runs to its end, and its output arrives where it always did."""
    started = start.run(tmp_path / "i", *python(WRITER), str(tmp_path / "end"), options=("--node", "n1"))
    started.until(lambda: "line 3" in started.out, 10, "output")
    started.process.kill()
    started.process.wait()
    started.until((tmp_path / "end").exists, 15, "end of the command")
    started.until(lambda: not started.processes(), 5, "end of all processes")
    assert started.out == "".join(f"line {number}\n" for number in range(40))
    assert started.err == "".join(f"other {number}\n" for number in range(40))
    kept = (tmp_path / "i" / "nodes" / "n1" / "logs" / "launcher.log").read_text()
    assert sorted(kept.splitlines()) == sorted((started.out + started.err).splitlines())


def test_the_command_goes_on_when_the_relay_is_killed(start: Starter, tmp_path: Path) -> None:
    """The process that carries the output is replaced by another; what it held just then is all that can be lost."""
    started = start.run(tmp_path / "i", *python(WRITER), str(tmp_path / "end"))
    started.until(lambda: "line 3" in started.out, 10, "output")
    os.kill(relay_of(started), signal.SIGKILL)
    assert started.wait(20) == 0
    assert (tmp_path / "end").exists()
    lines = started.out.splitlines()
    assert lines[-1] == "line 39"
    assert len(lines) >= 38


def relay_of(started: Started) -> int:
    """The relay; its standbys have the same script, and are told that they are."""
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in started.processes()}
    [relay] = [pid for pid, each in words.items() if b"relay.py" in each and b'"standby"' not in each]
    return relay


def test_the_command_goes_on_when_hangscope_and_then_the_relay_are_killed(start: Starter, tmp_path: Path) -> None:
    """Nobody is left to start another: the standby takes over, and the output arrives to its end."""
    started = start.run(tmp_path / "i", *python(WRITER), str(tmp_path / "end"))
    started.until(lambda: "line 3" in started.out, 10, "output")
    relay = relay_of(started)
    started.process.kill()
    started.process.wait()
    os.kill(relay, signal.SIGKILL)
    started.until((tmp_path / "end").exists, 15, "end of the command")
    started.until(lambda: not started.processes(), 5, "end of all processes")
    lines = started.out.splitlines()
    assert lines[-1] == "line 39"
    assert len(lines) >= 38


def test_the_command_goes_on_when_nobody_reads_its_output(tmp_path: Path) -> None:
    """The reader behind `run` goes away: no broken pipe ends the command, and the copy of its output is kept."""
    head = [sys.executable, "-m", "hangscope", "run", "--dir", str(tmp_path / "i"), "--node", "n1", "--keep", "--"]
    mark = f"broken-pipe-{os.getpid()}"
    process = subprocess.Popen(
        [*head, *python(WRITER), str(tmp_path / "end")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "HANGSCOPE_TEST": mark},
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 0
        assert (tmp_path / "end").exists()
        assert "line 39\n" in (tmp_path / "i" / "nodes" / "n1" / "logs" / "launcher.log").read_text()
    finally:
        for pid in processes_with(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_copy_that_cannot_be_written_does_not_cost_the_job(start: Starter, tmp_path: Path) -> None:
    """The copy of the output cannot be written: the command neither fails nor waits, and we say so."""
    incident = tmp_path / "i"
    logs = incident / "nodes" / "n1" / "logs"
    logs.mkdir(parents=True)
    (logs / "launcher.log").mkdir()
    started = start.run(incident, *python("print('a line'); raise SystemExit(9)"), options=("--node", "n1"))
    assert started.wait(20) == 9
    assert started.out == "a line\n"
    assert "the copy of the output is not complete: launcher.log: Is a directory" in started.err


def test_a_directory_that_cannot_be_written_does_not_stop_the_job(start: Starter, tmp_path: Path) -> None:
    """The evidence goes to the node's own disk then, and we say where."""
    started = start.run(
        Path("/proc/nowhere"), *python("print('runs')"), options=("--job", "j", "--keep"), TMPDIR=str(tmp_path)
    )
    assert started.wait(20) == 0
    assert started.out == "runs\n"
    assert "hangscope: warning: /proc/nowhere: " in started.err
    assert list(tmp_path.glob("hangscope-*/incidents/j/0/nodes/*/status.json"))


def test_a_terminal_stays_a_terminal(tmp_path: Path) -> None:
    """Under a terminal the command sees one too, of the same size, and Ctrl-C typed there ends it."""
    code = "import os, time; print(os.isatty(1), os.isatty(2), os.get_terminal_size(1), flush=True); time.sleep(20)"
    words = [sys.executable, "-m", "hangscope", "run", "--dir", str(tmp_path / "i"), "--", *python(code)]
    pid, terminal = pty.fork()
    if pid == 0:
        hear_signals()
        os.environ["PYTHONPATH"] = str(SOURCE)
        os.execv(words[0], words)
    if sys.version_info >= (3, 11):
        import termios

        termios.tcsetwinsize(terminal, (33, 77))
    seen = b""
    end = time.monotonic() + 15
    while b"True True" not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 4096)
    assert b"True True" in seen
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    assert os.WEXITSTATUS(status) in (1, 130)


def test_a_directory_that_holds_an_earlier_run_is_left_alone(start: Starter, tmp_path: Path) -> None:
    """A second run with the same --dir gets a directory of its own beside it."""
    for _ in range(2):
        assert start.run(tmp_path / "i", *python("print(1)"), options=("--node", "n1", "--keep")).wait(20) == 0
    assert (tmp_path / "i" / "nodes" / "n1" / "status.json").exists()
    assert (tmp_path / "i/run-2" / "nodes" / "n1" / "status.json").exists()


def test_a_job_that_was_started_without_us_can_be_captured(start: Starter, tmp_path: Path) -> None:
    """`snapshot PID` of a rank that has no companion: its state and, where py-spy may look, its stack."""
    rank = start(
        *python("def waits():\n    import time\n    print('in', flush=True)\n    time.sleep(60)\nwaits()"), RANK="3"
    )
    rank.until(lambda: "in" in rank.out, 10, "start")
    head = (sys.executable, "-m", "hangscope", "snapshot", str(rank.process.pid), "--dir", str(tmp_path / "i"))
    taken = start(*head, "--no-diagnose")
    assert taken.wait(40) == 0
    assert taken.out == f"{tmp_path / 'i'}\n"
    row = rank_row(tmp_path / "i", 3)
    assert (row["pid"], row["state"], row["exit_status"]) == (rank.process.pid, "S", None)
    gaps = {gap["what"]: gap["why"] for gap in node_file(tmp_path / "i")["gaps"]}
    assert gaps["recorder of rank 3"] == "no torch is loaded in it"
    if "stacks of rank 3" not in gaps:
        [stack] = (tmp_path / "i").glob("nodes/*/stacks/rank_3.1.txt")
        assert "waits" in stack.read_text()


def test_a_run_without_trouble_says_nothing_and_leaves_nothing(start: Starter, tmp_path: Path) -> None:
    """No word on stderr, and none of the directories that were made for it; what somebody else has there stays."""
    (tmp_path / "mine" / "nodes" / "n1").mkdir(parents=True)
    (tmp_path / "mine" / "nodes" / "n1" / "notes.txt").write_text("not ours")
    for place, left in (("made/deep/i", []), ("mine", ["mine/nodes/n1/notes.txt"])):
        started = start.run(tmp_path / place, *python("print(1)"), options=("--node", "n2"))
        assert started.wait(20) == 0
        assert started.err == ""
        top = tmp_path / place.split("/")[0]
        assert [str(path.relative_to(tmp_path)) for path in top.rglob("*") if path.is_file()] == left
        assert top.exists() == bool(left)


def test_a_run_that_failed_is_kept(start: Starter, tmp_path: Path) -> None:
    """A status other than 0 is trouble: the copy of the output stays."""
    assert start.run(tmp_path / "i", *python("raise SystemExit(3)"), options=("--node", "n1")).wait(20) == 3
    assert (tmp_path / "i" / "nodes" / "n1" / "status.json").exists()
