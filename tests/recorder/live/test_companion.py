"""The start-up hook in the user's own Python: invisible, whatever goes wrong in it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hangscope.recorder.live.companion_hook import COMPANION, with_companion
from hangscope.recorder.live.worker_server import ask


def run_python(code: str, sockets: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    base = {name: value for name, value in os.environ.items() if not name.startswith(("HANGSCOPE", "PYTHON", "TORCH"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=with_companion({**base, **environ}, sockets=sockets),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_it_is_written_for_the_oldest_python_that_may_run_it() -> None:
    """A training image's Python may be much older than hangscope's."""
    trees = [ast.parse(file.read_text(), feature_version=(3, 6)) for file in COMPANION.glob("*.py")]
    assert trees


def test_it_imports_nothing_of_hangscope() -> None:
    """It runs in interpreters in which hangscope is not installed."""
    files = list(COMPANION.glob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "hangscope" for name in names)


def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    """One further down the path runs as it did, under its own name, and sys.path is as it would be without us."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.mine = __name__, __file__\n")
    code = "import sys, sitecustomize; print(sys.mine, sitecustomize.__file__, sys.path)"
    done = run_python(code, tmp_path, PYTHONPATH=str(tmp_path / "site"))
    plain = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert done.stdout == plain.stdout
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_broken_sitecustomize_is_reported_as_python_reports_it(tmp_path: Path) -> None:
    """Its exception goes to Python's own start-up code, and the script runs."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("raise ValueError('mine')\n")
    done = run_python("print('runs')", tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert done.stdout == "runs\n"
    assert "Error in sitecustomize" in done.stderr
    assert "ValueError: mine" in done.stderr


IN_A_NEW_DIRECTORY = """
import json, os, signal, sys
sys.path.insert(0, {companion!r})
import _hangscope_companion as companion
companion.json, companion.signal = json, signal
State = companion._State
assert companion._hold({sockets!r})
State.pid = os.getpid()
State.registration = {{"pid": State.pid}}
companion._write_registration()
assert json.load(open({sockets!r} + "/%d.json" % State.pid)) == {{"pid": State.pid}}
os.rename({sockets!r}, {sockets!r} + ".gone") if {moved} else __import__("shutil").rmtree({sockets!r})
os.mkdir({sockets!r})
os.chmod({sockets!r}, 0o777)
for ending in (".json", ".json.part", ".stack", ".sock", ".pause", ".pause.part"):
    os.symlink({victim!r}, {sockets!r} + "/%d" % State.pid + ending)
for act in (companion._write_registration, lambda: companion._register_stack_signal({sockets!r})):
    try:
        act()
    except Exception as error:
        print(error)
print(companion._hold({sockets!r}))
from hangscope.announce_pause import expect_pause
os.environ["HANGSCOPE_SOCKETS"] = {sockets!r}
with expect_pause("x"):
    pass
"""


@pytest.mark.parametrize("moved", [True, False])
def test_a_directory_that_somebody_made_anew_gets_nothing(tmp_path: Path, moved: bool) -> None:
    """The sockets' directory goes while a process lives on, and links lie in another of its name: none is followed."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    sockets = tmp_path / "sockets"
    sockets.mkdir(mode=0o700)
    code = IN_A_NEW_DIRECTORY.format(companion=str(COMPANION), sockets=str(sockets), victim=str(victim), moved=moved)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("False\n")  # open for all: it cannot be ours
    assert victim.read_text() == "mine"


def test_nothing_happens_without_torch_distributed(tmp_path: Path) -> None:
    """A Python that does not import it registers nothing, starts no thread and prints nothing."""
    code = "import json, threading, os; print(threading.active_count(), len(os.listdir('/proc/self/task')))"
    done = run_python(code, tmp_path, RANK="0")
    assert (done.stdout, done.stderr) == ("1 1\n", "")
    assert not list(tmp_path.iterdir())


FAKE = """
import sys, types, os
folder = {folder!r}
os.makedirs(os.path.join(folder, 'torch', 'distributed'), exist_ok=True)
open(os.path.join(folder, 'torch', '__init__.py'), 'w').write("__version__ = '9.9'")
open(os.path.join(folder, 'torch', 'distributed', '__init__.py'), 'w').write({body!r})
sys.path.insert(0, folder)
import torch.distributed
print(type(torch.distributed.__spec__.loader).__name__, torch.distributed.answer)
"""


@pytest.mark.parametrize(
    ("given", "first", "shown"),
    [
        ({}, "", False),
        ({"PYTHONFAULTHANDLER": "1"}, "", True),
        ({}, "import faulthandler; faulthandler.enable(); ", True),
    ],
)
def test_what_a_crash_prints_is_the_users_to_decide(
    tmp_path: Path, given: dict[str, str], first: str, shown: bool
) -> None:
    """PYTHONFAULTHANDLER is set for Pythons without a companion; one that has it prints what it would without us."""
    done = run_python(f"{first}import os; os.abort()", tmp_path, **given)
    assert done.returncode == -6
    assert ("Fatal Python error: Aborted" in done.stderr) is shown


def test_a_torch_without_a_worker_server_is_a_gap(tmp_path: Path) -> None:
    """An old torch: the reason is in the registration, the module's loader is its own again, the script runs on."""
    sockets = tmp_path / "s"
    sockets.mkdir()
    done = run_python(FAKE.format(folder=str(tmp_path / "fake"), body="answer = 42"), sockets, RANK="3")
    assert done.stdout == "SourceFileLoader 42\n"
    [file] = sockets.glob("*.json")
    registration = json.loads(file.read_text())
    assert (registration["rank"], registration["socket"], registration["torch"]) == (3, None, "9.9")
    assert "worker server" in registration["errors"][0]


def test_a_crash_of_the_companion_does_not_reach_the_script(tmp_path: Path) -> None:
    """Its directory cannot be written, its torch raises odd errors: the script sees none of it."""
    body = (
        "import sys, types\n"
        "class Odd(types.ModuleType):\n"
        "    def __getattr__(self, name): raise KeyError(name)\n"
        "sys.modules['torch._C._distributed_c10d'] = Odd('x')\n"
        "answer = 42\n"
    )
    for sockets in (tmp_path / "missing", Path("/proc")):
        done = run_python(FAKE.format(folder=str(tmp_path / "fake"), body=body), sockets, RANK="3")
        assert (done.stdout, done.stderr, done.returncode) == ("SourceFileLoader 42\n", "", 0)


def test_an_import_that_fails_fails_as_it_did(tmp_path: Path) -> None:
    """torch.distributed raises on import: the script gets that very exception."""
    body = "raise ImportError('no libtorch')"
    done = run_python(FAKE.format(folder=str(tmp_path / "fake"), body=body), tmp_path)
    assert "ImportError: no libtorch" in done.stderr
    assert "hangscope" not in done.stderr.splitlines()[-1]


@pytest.mark.torch
class TestWithTorch:
    """One real process with torch, asked over its socket."""

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch")

    def test_a_rank_answers_and_nothing_in_it_changed(self, tmp_path: Path) -> None:
        """The server answers; forked children, signals, threads' output and the exit status are as without it."""
        code = """
import os, signal, sys, time, threading
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
import torch.distributed
assert signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL
bits = int([line for line in open('/proc/self/status') if line.startswith('SigIgn')][0].split()[1], 16)
assert not bits >> (signal.SIGPIPE - 1) & 1, 'SIGPIPE is ignored'
assert threading.active_count() == 1
child = os.fork()
if child == 0:
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
print('ready', flush=True)
sys.stdin.read()
sys.exit(7)
"""
        base = {n: v for n, v in os.environ.items() if not n.startswith(("HANGSCOPE", "PYTHON", "TORCH"))}
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=with_companion({**base, "RANK": "4", "WORLD_SIZE": "8"}, sockets=tmp_path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()
            registration = json.loads((tmp_path / f"{process.pid}.json").read_text())
            assert (registration["rank"], registration["world_size"], registration["errors"]) == (4, 8, [])
            socket = registration["socket"]
            assert ask(socket, "ping", 2).body == b"pong"
            assert b"<module>" in ask(socket, "dump_traceback", 2).body
            for _ in range(3):  # a client that goes away early must not end it with SIGPIPE
                ask(socket, "dump_traceback", 0.0)
            time.sleep(0.2)
            assert process.poll() is None
            os.kill(process.pid, registration["stack_signal"])
            for _ in range(50):
                time.sleep(0.1)
                if (tmp_path / f"{process.pid}.stack").stat().st_size:
                    break
            assert b"most recent call first" in (tmp_path / f"{process.pid}.stack").read_bytes()
            _, errors = process.communicate("", timeout=30)
            assert (process.returncode, errors) == (7, "")
            assert not Path(socket).exists()
        finally:
            process.kill()
            process.communicate()

    def test_a_question_in_flight_does_not_disturb_the_exit(self, tmp_path: Path) -> None:
        """The process ends while its server still answers: it waits for that, and its status is its own."""
        code = """
import sys, time, torch.distributed
from torch._C import _distributed_c10d as c10d
def slow(request, response):
    for _ in range(50):
        time.sleep(0.01)
    response.set_content('done', 'text/plain')
    response.set_status(200)
c10d._register_handler('slow', slow)
print('ready', flush=True)
sys.stdin.readline()
sys.exit(7)
"""
        base = {n: v for n, v in os.environ.items() if not n.startswith(("HANGSCOPE", "PYTHON", "TORCH"))}
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=with_companion({**base, "RANK": "0"}, sockets=tmp_path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(ask, str(tmp_path / f"{process.pid}.sock"), "slow", 10)
                time.sleep(0.2)
                _, errors = process.communicate("\n", timeout=30)
                assert answer.result().body == b"done"
            assert (process.returncode, errors) == (7, "")
        finally:
            process.kill()
            process.communicate()

    def test_no_question_reaches_a_rank_that_ends(self, tmp_path: Path) -> None:
        """Asked without a pause from before its end on, by a name of its socket that does not go, and with an object
        that outlives the modules: its status is its own, and it prints nothing."""
        code = """
import sys, torch.distributed
class Keeper:
    def __init__(self):
        self.modules = list(sys.modules.values())
    def hook(self, *_):
        print(sys)
print('ready', flush=True)
sys.stdin.readline()
sys.excepthook = Keeper().hook
sys.takes_long_to_free = [{number: [number]} for number in range(300_000)]
sys.exit(7)
"""
        base = {n: v for n, v in os.environ.items() if not n.startswith(("HANGSCOPE", "PYTHON", "TORCH"))}
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=with_companion({**base, "RANK": "0"}, sockets=tmp_path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

        def ask_until_it_ends() -> list[bool]:
            answers = []
            while process.poll() is None:
                answers.append(ask(str(tmp_path / "kept"), "hangscope_progress", 1.0).ok)
                time.sleep(0.001)
            return answers

        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()
            os.link(tmp_path / f"{process.pid}.sock", tmp_path / "kept")
            with ThreadPoolExecutor(3) as pool:
                asking = [pool.submit(ask_until_it_ends) for _ in range(2)]
                _, errors = process.communicate("\n", timeout=60)
                answers = [answer for each in asking for answer in each.result()]
            assert (process.returncode, errors) == (7, "")
            assert True in answers
            assert False in answers
        finally:
            process.kill()
            process.communicate()

    def test_the_launcher_itself_is_no_rank(self, tmp_path: Path) -> None:
        """torchrun imports torch.distributed too, and gets no server."""
        base = {n: v for n, v in os.environ.items() if not n.startswith(("HANGSCOPE", "PYTHON", "TORCH"))}
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--help"],
            env=with_companion(base, sockets=tmp_path),
            capture_output=True,
            timeout=60,
            check=True,
        )
        assert not list(tmp_path.iterdir())


def test_of_calls_only_whole_numbers_and_names_of_groups_are_told() -> None:
    """What a call of torch.distributed was given is told without a value of the user's, and of no other function."""
    code = f"""
import json, sys
sys.path.insert(0, {str(COMPANION)!r})
import _hangscope_companion as companion
source = '''
def recv(tensor, src=None, group=None, tag=0, group_src=None):
    return companion._call_of(sys._getframe())
def _new_group_with_tag(ranks, password="hunter2"):
    group_name = "3"
    return companion._call_of(sys._getframe())
def all_reduce(tensor, src=1):
    return companion._call_of(sys._getframe())
'''
class Number(int):
    def __str__(self):
        raise SystemExit("the user's code ran")
torch, own = dict(globals()), dict(globals())
exec(compile(source, "/x/torch/distributed/distributed_c10d.py", "exec"), torch)
exec(compile(source, "/home/u/distributed_c10d.py", "exec"), own)
print(json.dumps([
    torch["recv"]("secret", src=2, tag=7),
    torch["recv"]("secret", src=Number(2), tag="token"),
    torch["_new_group_with_tag"]([0, 1]),
    torch["_new_group_with_tag"](["secret", 1]),
    torch["all_reduce"]("secret"),
    own["recv"]("secret", src=2),
]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    received, odd, made, strange, *others = json.loads(done.stdout)
    assert (received["src"], received["tag"]) == (2, 7)
    assert set(odd) == {"function", "line"}
    assert (made["function"], made["ranks"], made["group"]) == ("new_group", [0, 1], "3")
    assert "ranks" not in strange
    assert others == [None, None]
