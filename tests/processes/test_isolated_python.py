"""No module that somebody left in the working directory runs, with any verb, where the bare command runs none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hangscope.processes.isolated_python import clean_environment, hangscope_command

HANGSCOPE = Path(sys.executable).with_name("hangscope")
NAMES = sorted(
    {
        *sys.stdlib_module_names,
        "numpy",
        "click",
        "rich",
        "jinja2",
        "tomli",
        "torch",
        "fsspec",
        "hangscope",
        "sitecustomize",
    }
    - {"__main__"}
)
CASE = Path(__file__).parents[1] / "cases" / "skipped"
POISON = """
import posix
_ran = posix.open({ran!r}, posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT, 0o666)
posix.write(_ran, ({name!r} + "\\n").encode())
posix.close(_ran)
"""


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    """A working directory with a file for every module of the standard library and of our dependencies."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(POISON.format(ran=str(tmp_path / "ran"), name=name))
    return folder


def ran(poisoned: Path, *words: str, **environ: str) -> set[str]:
    """The poisoned modules that ran when this command was run among them."""
    record = poisoned.parent / "ran"
    record.unlink(missing_ok=True)
    done = subprocess.run(
        words, cwd=poisoned, env={**os.environ, **environ}, capture_output=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode in (0, 1, 2, 3), done.stderr.decode()
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return set(record.read_text().split()) if record.exists() else set()


def shim(folder: Path) -> Path:
    """A `python3` whose folders do not say where its torch is, as pyenv's: it has to be asked."""
    folder.mkdir()
    for name in ("python", "python3"):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


VERBS: dict[str, tuple[str, ...]] = {
    "env": ("env",),
    "doctor": ("doctor",),
    "diagnose": ("diagnose", str(CASE)),
    "show": ("show", str(CASE)),
    "report": ("report", str(CASE), "-o", "page.html", "-o", "v.json"),
    "bundle": ("bundle", str(CASE), "-o", "b.tar.gz"),
    "collect": ("collect", "--from", str(CASE), "-o", "collected"),
    "simulate": ("simulate", "-o", "simulated", "--ranks", "2"),
    "snapshot": ("snapshot", "1"),
    "watch": ("watch", "--once", "."),
    "demo": ("demo", "--help"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_runs_a_module_of_the_working_directory(poisoned: Path, verb: str) -> None:
    """Every module's name is taken there, and none of them runs, neither in the verb nor in a helper of it."""
    path = f"{shim(poisoned.parent / 'shims')}:{os.environ['PATH']}"
    assert not ran(poisoned, str(HANGSCOPE), *VERBS[verb], PATH=path)


SCRIPTS = {
    "a script elsewhere": ("{python}", "{script}"),
    "a shim's script elsewhere": ("{shims}/python3", "{script}"),
    "a program that is no Python": ("/bin/true",),
}


@pytest.mark.parametrize("which", SCRIPTS)
@pytest.mark.parametrize("pythonpath", [None, "", "/nowhere"])
def test_run_adds_no_module_to_what_its_command_runs(poisoned: Path, which: str, pythonpath: str | None) -> None:
    """The command itself runs none of them, and neither does it under `run`, whatever PYTHONPATH there was."""
    script = poisoned.parent / "script.py"
    script.write_text("import json, signal, selectors\n")
    shims = shim(poisoned.parent / "shims")
    words = [word.format(python=sys.executable, script=script, shims=shims) for word in SCRIPTS[which]]
    more = {} if pythonpath is None else {"PYTHONPATH": pythonpath}
    assert not ran(poisoned, *words, **more)
    assert not ran(poisoned, str(HANGSCOPE), "run", "--", *words, **more)


def test_the_users_own_pythonpath_stays_the_commands(poisoned: Path) -> None:
    """Where PYTHONPATH leads to the working directory, the command runs from there what it did before, and no more."""
    script = poisoned.parent / "script.py"
    script.write_text("import selectors\n")
    for name in set(NAMES) - {"selectors", "json", "signal", "enum", "re", "threading", "importlib"}:
        (poisoned / f"{name}.py").unlink()  # many of them Python itself needs, and does not start with an empty one
    for pythonpath in (str(poisoned), ".", ":/nowhere"):
        bare = ran(poisoned, sys.executable, str(script), PYTHONPATH=pythonpath)
        assert "selectors" in bare
        start = f"import sys; sys.path[:] = {sys.path[1:]!r}; from hangscope.cli.main import main; sys.exit(main())"
        words = ("run", "--", sys.executable, str(script))
        launcher = (sys.executable, "-I", "-c", start, *words)
        assert ran(poisoned, *launcher, PYTHONPATH=pythonpath) == bare


def test_a_helper_is_the_same_hangscope_whatever_lies_around(poisoned: Path) -> None:
    """Our own command started as a helper finds itself and its dependencies, and none of the directory's."""
    assert not ran(poisoned, *hangscope_command("diagnose", str(CASE)), PYTHONPATH=str(poisoned), PYTHONSTARTUP="x.py")


def test_a_helper_gets_no_variable_of_python() -> None:
    """What Python reads from the environment is for the job."""
    assert clean_environment({"PYTHONPATH": "a", "PYTHONHOME": "b", "PATH": "c"}) == {"PATH": "c"}


def test_the_diagnosis_of_a_run_takes_no_module_from_where_the_job_was_started(poisoned: Path) -> None:
    """The process that judges an incident, started by `snapshot` and the agent, is a helper, too."""
    code = (
        f"import sys; sys.path[:] = {sys.path[1:]!r}; from pathlib import Path;"
        "from hangscope.recorder.agent.diagnose_process import diagnose;"
        f"assert diagnose(Path({str(CASE)!r}), keep=False).value, 'no verdict'"
    )
    assert not ran(poisoned, sys.executable, "-I", "-c", code, PYTHONPATH=str(poisoned))
