"""What people type: pipes as paths, mistyped options, times, `help`, completion, files that are there already."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from hangscope.cli.built_in import SHELLS
from hangscope.cli.main import main
from hangscope.cli.size_options import seconds

CASES = Path(__file__).parents[1] / "cases"
HANGSCOPE = f"{sys.executable} -m hangscope"


def bash(line: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **more}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, env=env, check=False)


@pytest.fixture
def log() -> Path:
    """A rank's log with an exception in it."""
    return next(path for path in sorted((CASES / "exception").rglob("rank_*.log")) if "Traceback" in path.read_text())


# ---- pipes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["- < {}", "/dev/stdin < {}", "<(cat {})", "/dev/fd/7 7< {}", "<(gzip < {})"])
def test_what_comes_through_a_pipe_is_read_as_the_file_is(form: str, log: Path) -> None:
    """Standard input by each of its names, and a command's output."""
    wanted = json.loads(bash(f"{HANGSCOPE} diagnose --json {log}").stdout)
    done = bash(f"{HANGSCOPE} diagnose --json {form.format(log)}")
    found = json.loads(done.stdout)
    assert (found["outcome"], found["kind"]) == (wanted["outcome"], wanted["kind"])
    assert "hangscope-standard-input" not in done.stdout


def test_two_pipes_are_read_together(log: Path) -> None:
    """As two files are: each under a name of its own."""
    other = next(path for path in sorted(log.parents[1].rglob("rank_*.log")) if path != log)
    done = bash(f"{HANGSCOPE} diagnose --json <(cat {log}) <(cat {other})")
    assert len(set(json.loads(done.stdout)["inputs"])) == 2
    assert "pipe-" in done.stdout and "hangscope-standard-input" not in done.stdout


def test_other_verbs_take_pipes_too(log: Path, tmp_path: Path) -> None:
    """`report`, `show` and `bundle`."""
    page = tmp_path / "x.json"
    assert bash(f"{HANGSCOPE} report - -o {page} < {log}").returncode in (1, 3)
    assert "hangscope-standard-input" not in page.read_text()
    assert "all_reduce" in bash(f"{HANGSCOPE} show <(tar -cz -C {CASES / 'exception'} .)").stdout
    assert bash(f"cd {tmp_path} && {HANGSCOPE} bundle - < {log}").stdout == "standard-input.bundle.tar.gz\n"


def test_an_empty_pipe_and_a_closed_handle_are_said() -> None:
    """With status 2."""
    done = bash(f"{HANGSCOPE} diagnose <(true)")
    assert done.returncode == 2 and "printed nothing" in done.stderr
    done = bash(f"{HANGSCOPE} diagnose /dev/fd/77")
    assert done.returncode == 2 and "nothing is open there" in done.stderr


def test_a_zip_is_diagnosed(tmp_path: Path) -> None:
    """Also one that comes through a pipe."""
    packed = shutil.make_archive(str(tmp_path / "case"), "zip", CASES / "mesh_absent")
    for form in (packed, f"- < {packed}"):
        done = bash(f"{HANGSCOPE} diagnose {form}")
        assert done.returncode == 1 and done.stdout.startswith("HANG   rank 6 ")


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--stallafter", "5", "--", "true"], "no such option --stallafter; did you mean --stall-after?"),
        (["run", "--on_hang=kill", "--", "true"], "no such option --on_hang; did you mean --on-hang?"),
        (["run", "--nproc-per-node", "8", "x.py"], "no such option --nproc-per-node"),
        (["diagnose", "--jason", "."], "no such option --jason; did you mean --json?"),
    ],
)
def test_a_mistyped_option_is_named_and_nothing_is_started(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the option that was probably meant."""
    assert main(words) == 2
    assert f"error: {said}\n" in capsys.readouterr().err


def test_options_of_the_command_are_its_own(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Behind the first word of the command everything belongs to it, with and without `--`."""
    for start in ([], ["--"]):
        assert main(["run", "--dir", str(tmp_path / "x"), *start, "echo", "--stallafter", "-n"]) == 0
        assert capfd.readouterr().out == "--stallafter -n\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("1.5h", 5400), ("2 d", 172800), ("500ms", 0.5)],
)
def test_times_are_taken_as_people_write_them(text: str, value: float) -> None:
    """In seconds, or with a unit, or several."""
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "m", "5x", "1h-3m", "-5", "1e3", "five", "5m!", "1 2"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """Rather than read as something else."""
    assert seconds(text) is None


@pytest.mark.parametrize(
    "words",
    [
        ["collect", "-o", "x", "--deadline", "soon"],
        ["collect", "-o", "x", "--stale-after", "soon"],
        ["simulate", "-o", "x", "--timeout", "soon"],
        ["run", "--stall-after", "soon", "true"],
        ["run", "--kill-after", "soon", "true"],
        ["run", "--grace", "soon", "true"],
    ],
)
def test_every_time_is_read_in_the_same_way(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One way for every option of every verb."""
    assert main(words) == 2
    assert "'soon' is not a time such as 90, 30s or 5m" in capsys.readouterr().err


# ---- bundle ----------------------------------------------------------------------------------------------------------


def test_a_bundle_overwrites_nothing_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a report does: it says so before anything is read, and --force does it."""
    target = tmp_path / "x.tar.gz"
    target.write_text("mine")
    words = ["bundle", str(CASES / "exception"), "-o", str(target), "--no-verdict"]
    assert main(words) == 2
    assert target.read_text() == "mine"
    assert "is there already\nhint: --force overwrites it" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
    assert tarfile.is_tarfile(target)


@pytest.mark.parametrize("name", ["foo.zip", "foo.tar", "foo", "foo.tar.xz", "foo.html"])
def test_a_bundle_is_never_what_its_name_does_not_say(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only .tar.gz and .tgz name what it is."""
    assert main(["bundle", str(CASES / "exception"), "-o", str(tmp_path / name)]) == 2
    assert "a bundle is a .tar.gz" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---- help and completion ---------------------------------------------------------------------------------------------


def test_help_shows_what_the_option_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """`help VERB` is `VERB --help`, and `help` is `--help`."""
    for words, same in ((["help", "show"], ["show", "--help"]), (["help"], ["--help"])):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert main(same) == 0
        assert shown == capsys.readouterr().out
    assert main(["help", "shwo"]) == 2
    assert "did you mean show?" in capsys.readouterr().err


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_its_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In its own language, asking by the variable that hangscope answers to."""
    assert main(["completion", shell]) == 0
    assert f"_HANGSCOPE_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_bash_completes_verbs_and_options(tmp_path: Path) -> None:
    """In a real shell that read the script."""
    script = tmp_path / "hangscope"
    script.write_text(f'#!/bin/sh\nexec {HANGSCOPE} "$@"\n')
    script.chmod(0o755)
    ask = 'COMP_WORDS=({}); COMP_CWORD={}; _hangscope_completion hangscope; echo "${{COMPREPLY[@]}}"'
    line = f'PATH={tmp_path}:$PATH; eval "$(hangscope completion bash)" && {ask.format("hangscope dia", 1)}'
    assert bash(line).stdout.split() == ["diagnose"]
    line = f'PATH={tmp_path}:$PATH; eval "$(hangscope completion bash)" && {ask.format("hangscope diagnose --js", 2)}'
    assert bash(line).stdout.split() == ["--json"]


# ---- whole stacks ----------------------------------------------------------------------------------------------------


def test_verbose_shows_whole_stacks(capsys: pytest.CaptureFixture[str]) -> None:
    """From the innermost call to the module, of the accused rank first; without -v there is none."""
    assert main(["diagnose", str(CASES / "mesh_absent")]) == 1
    assert "Stacks" not in capsys.readouterr().out
    assert main(["diagnose", "-v", "--width", "120", str(CASES / "mesh_absent")]) == 1
    shown = capsys.readouterr().out.partition("\nStacks")[2].partition("\n\n")[0].splitlines()
    assert shown[1] == "  rank 6, main thread"
    assert "train.py:72" in shown[2] and "<module>" in shown[6]
    assert shown[7] == "  ranks 0-5, 7, main thread"
