"""The command line as people and scripts meet it: real processes, real pipes, a real terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import hangscope as package
from hangscope.cli.main import GROUPS, INTERNAL_ERROR, VERBS, main
from hangscope.report.contract_schema import schema

PACKAGE = Path(package.__file__).parent
CASES = Path(__file__).parents[1] / "cases"
NAMES = sorted(path.parent.name for path in CASES.glob("*/truth.json"))
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def hangscope(
    *args: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """One command line in a process of its own, both streams piped."""
    clean = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    clean["PYTHONPATH"] = str(PACKAGE.parent)
    command = [sys.executable, "-m", "hangscope", *map(str, args)]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", env={**clean, **(env or {})}, cwd=cwd, timeout=60
    )


def on_a_terminal(*args: str | Path, env: dict[str, str] | None = None, columns: int = 100) -> tuple[int, str]:
    """The same on a pseudo-terminal: exit status, and all that a person would see."""
    import fcntl
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    clean = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "CI")}
    process = subprocess.Popen(
        [sys.executable, "-m", "hangscope", *map(str, args)],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**clean, "TERM": "xterm-256color", **(env or {})},
    )
    os.close(follower)
    seen = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([leader], [], [], 0.2)[0]:
            continue
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # Linux says EIO when the last process has closed its side
            break
        if not chunk:
            break
        seen += chunk
    os.close(leader)
    return process.wait(timeout=30), seen.decode().replace("\r\n", "\n")


# ---- the frame -------------------------------------------------------------------------------------------------------


def test_help_groups_the_verbs() -> None:
    """`hangscope --help` and -h show every verb that is there with one line each, by what somebody came for;
    `hangscope` alone says the three things to do first, each of which is a verb."""
    done = hangscope("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    listed = re.findall(r"^  ([a-z]+)  +[A-Z]", done.stdout, re.MULTILINE)
    assert listed == [verb for verb in VERBS if verb in listed]
    assert {"diagnose", "report", "show"} <= set(listed)
    assert hangscope("-h").stdout == done.stdout
    titles = re.findall(r"^([A-Z][a-z ]+):$", done.stdout, re.MULTILINE)
    assert titles == ["Options", *GROUPS]
    first = hangscope()
    assert (first.returncode, first.stderr) == (0, "")
    assert re.findall(r"^  hangscope (\S+)", first.stdout, re.MULTILINE) == ["snapshot", "diagnose", "run"]


def test_version() -> None:
    """`--version` says the package's version."""
    assert hangscope("--version").stdout == f"hangscope {package.__version__}\n"


@pytest.mark.parametrize("verb", ["diagnose", "report", "show"])
def test_every_verb_explains_itself(verb: str) -> None:
    """`hangscope VERB --help` explains the verb and its options on stdout."""
    done = hangscope(verb, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: hangscope {verb} ")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("args", "says", "hints"),
    [
        (["dignose"], "did you mean diagnose?", "--help"),
        (["diagnose"], "PATH", "diagnose --help"),
        (["diagnose", "/no/such/path"], "/no/such/path", ""),
        (["diagnose", ".", "--width", "7"], "7", "--help"),
        (["diagnose", ".", "--colour"], "--colour", "--help"),
        (["report", ".", "-o", "x.docx"], "x.docx", ".json"),
        (["show", ".", "--state", "lost"], "lost", "--help"),
        (["show", ".", "--rank", "0-"], "0-", "0-7"),
        (["show", ".", "--rank", "7-3"], "backwards", "3-7"),
    ],
)
def test_a_users_mistake_is_answered_not_dumped(args: list[str], says: str, hints: str, tmp_path: Path) -> None:
    """A mistake gives status 2, `error:` and where possible `hint:` on stderr, nothing on stdout and no traceback."""
    done = hangscope(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert f"\nhint: {hints}".rstrip() in done.stderr or hints in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_evidence_is_unusable_input(tmp_path: Path) -> None:
    """An empty folder is not a healthy job: status 2 and what was looked for."""
    done = hangscope("diagnose", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "\nhint: " in done.stderr


def test_names_from_the_file_system_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    """A path with an escape sequence in its name is shown as text in the error."""
    done = hangscope("diagnose", tmp_path / "\x1b[2Jgone")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert r"\x1b[2Jgone" in done.stderr


def with_verbs(tmp_path: Path, verbs: dict[str, str | None]) -> dict[str, str]:
    """A copy of the package with some verbs replaced, or removed where None; the environment that uses it."""
    copy = tmp_path / "copy" / "hangscope"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for verb, text in verbs.items():
        path = copy / "cli" / "verbs" / f"{verb}.py"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
    return {"PYTHONPATH": str(copy.parent)}


def test_one_broken_verb_leaves_the_others_alone(tmp_path: Path) -> None:
    """A verb whose module cannot be imported, or is missing, breaks neither the help nor another verb."""
    env = with_verbs(tmp_path, {"watch": "import no_such_module\n", "show": None})
    listed = hangscope("--help", env=env, cwd=tmp_path)
    assert listed.returncode == 0
    assert "watch" in listed.stdout
    assert "show" not in re.findall(r"^  ([a-z]+)  +[A-Z]", listed.stdout, re.MULTILINE)
    assert hangscope("diagnose", CASES / "healthy", env=env, cwd=tmp_path).returncode == 0
    assert hangscope("watch", "x", env=env, cwd=tmp_path).returncode == INTERNAL_ERROR


def test_hangscopes_own_mistake_is_not_taken_for_a_verdict(tmp_path: Path) -> None:
    """An unexpected exception has a status of its own, so that no script reads it as `a hang with a named cause`."""
    bad = "import click\n@click.command()\ndef command() -> int:\n    raise RuntimeError('oops')\n"
    done = hangscope("show", env=with_verbs(tmp_path, {"show": bad}), cwd=tmp_path)
    assert done.returncode == INTERNAL_ERROR
    assert "RuntimeError: oops" in done.stderr
    assert "error: this is a bug in hangscope" in done.stderr


def test_main_can_be_called(capsys: pytest.CaptureFixture[str]) -> None:
    """`main(argv)` returns the status and raises nothing for a user's mistake."""
    assert main(["diagnose", "/no/such/path"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


# ---- diagnose --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_exit_status_and_json_of_every_recorded_case(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each recorded case gives the status of its truth, and JSON on stdout that follows the published schema."""
    truth = json.loads((CASES / name / "truth.json").read_text())
    status = main(["diagnose", str(CASES / name), "--json"])
    out, err = capsys.readouterr()
    value = json.loads(out)
    assert [error.message for error in Draft202012Validator(schema()).iter_errors(value)] == []
    assert err == ""
    assert value["hang"] is truth["hang"]
    assert status == (3 if value["kind"] == "unknown" else 1 if truth["hang"] else 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_case_is_answered_in_plain_text_within_the_width(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Off a terminal, each case's report has no escape sequence, no line beyond the width, and nothing on stderr."""
    for width in (60, 120):
        main(["diagnose", str(CASES / name), "--width", str(width)])
        out, err = capsys.readouterr()
        assert err == ""
        assert "\x1b" not in out
        assert max(map(len, out.splitlines())) <= width
        assert re.match(r"(HANG|OK|SLOW|WRONG) +\S", out)


def test_width_comes_from_the_option_then_columns_then_80() -> None:
    """--width wins over COLUMNS, COLUMNS over the default of 80."""

    def widest(*args: str, **env: str) -> int:
        done = hangscope("diagnose", CASES / "skipped", *args, env=env)
        return len(done.stdout.splitlines()[0])

    assert widest() == 80
    assert widest(COLUMNS="100") == 100
    assert widest("--width", "60", COLUMNS="100") == 60


def test_colour_only_on_a_terminal_and_never_against_no_color() -> None:
    """A terminal gets colour; NO_COLOR and TERM=dumb take it away; the words are the same with and without."""
    status, coloured = on_a_terminal("diagnose", CASES / "skipped")
    assert status == 1
    assert "\x1b[1;31mHANG" in coloured
    _, plain = on_a_terminal("diagnose", CASES / "skipped", env={"NO_COLOR": "1"})
    _, dumb = on_a_terminal("diagnose", CASES / "skipped", env={"TERM": "dumb"})
    assert not re.search(r"\x1b\[[0-9;]*m", plain[plain.index("HANG") :])
    assert "\x1b" not in dumb
    piped = hangscope("diagnose", CASES / "skipped", "--width", "100").stdout

    def words(text: str) -> list[str]:
        return [line.rstrip() for line in ANSI.sub("", text).split("HANG", 1)[1].splitlines()]

    assert words(coloured) == words(plain) == words(dumb) == words(piped)


def test_the_terminals_width_is_used_within_reason() -> None:
    """A narrow terminal is respected; a very wide one is not filled beyond 120 columns."""
    for columns, widest in ((60, 60), (300, 120)):
        _, text = on_a_terminal("diagnose", CASES / "skipped", env={"NO_COLOR": "1"}, columns=columns)
        lines = ANSI.sub("", text).split("HANG", 1)[1].splitlines()
        assert max(map(len, lines)) <= widest


def test_progress_goes_to_the_terminal_alone() -> None:
    """With stderr on a terminal something is shown while reading; it never mixes with JSON on a piped stdout."""
    done = hangscope("diagnose", CASES / "multi_pg", "--json")
    assert done.stderr == ""
    _, text = on_a_terminal("diagnose", CASES / "multi_pg", "--json")
    assert json.loads(ANSI.sub("", text[text.index('{\n "schema"') :]))["hang"] is True


def test_a_reader_that_goes_away_is_no_error() -> None:
    """`hangscope show … | head -1` ends quietly."""
    command = f"{sys.executable} -m hangscope show {CASES / 'healthy'} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_an_ascii_only_stream_still_gets_the_whole_report() -> None:
    """Where stdout cannot carry typographic characters they are spelled in ASCII."""
    done = hangscope("diagnose", CASES / "skipped", "-v", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 1
    assert done.stdout.isascii()
    assert done.stdout.startswith("HANG")


def test_several_paths_are_one_job() -> None:
    """The nodes' folders given one by one are the same job as their parent."""
    case = CASES / "multi_pg"
    parts = sorted(path for path in case.iterdir() if path.name != "truth.json")
    whole = json.loads(hangscope("diagnose", case, "--json").stdout)
    pieces = json.loads(hangscope("diagnose", *parts, "--json").stdout)
    for key in ("kind", "hang"):
        assert whole[key] == pieces[key]
    assert [c["rank"] for c in whole["culprits"]] == [c["rank"] for c in pieces["culprits"]]


# ---- report ----------------------------------------------------------------------------------------------------------


def test_report_writes_the_form_that_the_ending_names(tmp_path: Path) -> None:
    """`report -o x.json` and `x.txt` write what `diagnose` prints, and return its status."""
    case = CASES / "skipped"
    for ending, option in ((".json", ["--json"]), (".txt", [])):
        target = tmp_path / f"verdict{ending}"
        done = hangscope("report", case, "-o", target)
        assert done.returncode == 1
        assert done.stdout == ""
        assert target.read_text(encoding="utf-8") == hangscope("diagnose", case, *option).stdout


def test_report_makes_a_ticket(tmp_path: Path) -> None:
    """`report -o ticket.md` writes Markdown that names the culprit's rank and node and the first reporter."""
    target = tmp_path / "ticket.md"
    assert hangscope("report", CASES / "multi_pg", "-o", target).returncode == 1
    ticket = target.read_text(encoding="utf-8")
    assert ticket.startswith("# ")
    for needed in ("rank 3", "gpu-worker-7", "rank 2", "2.28.9"):
        assert needed in ticket


def test_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """A target that cannot be written is an error of its own, and nothing is left behind."""
    blocker = tmp_path / "file"
    blocker.write_text("")
    done = hangscope("report", CASES / "healthy", "-o", blocker / "x.json")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [blocker]


def test_report_writes_several_forms_at_once_and_says_their_sizes(tmp_path: Path) -> None:
    """Several -o read the job once, each in its form; stderr names every file with its size, stdout stays empty."""
    names = ["hang.html", "hang.perfetto-trace", "verdict.json", "verdict.txt", "ticket.md"]
    options = [word for name in names for word in ("-o", str(tmp_path / name))]
    done = hangscope("report", CASES / "skipped", *options)
    assert done.returncode == 1
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    *written, redacted = done.stderr.splitlines()
    assert "--no-redact" in redacted
    for line, name in zip(written, names, strict=True):
        assert re.fullmatch(rf"wrote {re.escape(str(tmp_path / name))} \([\d.]+ (B|KiB|MiB)\)", line)
    assert (tmp_path / "hang.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "hang.perfetto-trace").read_bytes()[:2] == b"\x1f\x8b"


def test_report_overwrites_only_when_told_to(tmp_path: Path) -> None:
    """A file that is there is refused before anything is written; --force overwrites it."""
    target = tmp_path / "hang.html"
    target.write_text("mine")
    done = hangscope("report", CASES / "skipped", "-o", tmp_path / "new.json", "-o", target)
    assert done.returncode == 2
    assert "already exists" in done.stderr
    assert "--force" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["hang.html"]
    assert target.read_text() == "mine"
    assert hangscope("report", CASES / "skipped", "-o", target, "--force").returncode == 1
    assert target.read_text(encoding="utf-8") != "mine"


def test_report_takes_the_form_from_format_whatever_the_ending(tmp_path: Path) -> None:
    """--format overrides the ending, and allows one that names no form."""
    target = tmp_path / "attachment.bin"
    assert hangscope("report", CASES / "skipped", "-o", target, "--format", "json").returncode == 1
    assert json.loads(target.read_text())["kind"] == "mismatch"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "nothing to write"),
        (["-o", "a.html", "-o", "a.html"], "given twice"),
        (["-o", ".", "--format", "html"], "is a directory"),
        (["-o", "x.html", "--format", "pdf"], "pdf"),
    ],
)
def test_report_refuses_what_cannot_be_meant(options: list[str], says: str, tmp_path: Path) -> None:
    """No file, one file twice, a directory and an unknown form are errors before anything is read."""
    done = hangscope("report", CASES / "skipped", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_report_opens_the_page_in_the_browser(tmp_path: Path) -> None:
    """--open hands the page to the browser: the one that -o names, else one in a directory of its own."""
    browser = tmp_path / "browser.sh"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/opened\n')
    browser.chmod(0o755)
    env = {"BROWSER": f"{browser} %s", "TMPDIR": str(tmp_path)}
    assert hangscope("report", CASES / "skipped", "--open", "-o", tmp_path / "hang.html", env=env).returncode == 1
    done = hangscope("report", CASES / "skipped", "--open", env=env)
    assert done.returncode == 1
    first, second = (tmp_path / "opened").read_text().split()
    assert first == (tmp_path / "hang.html").as_uri()
    assert Path(second.removeprefix("file://")).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert second.removeprefix("file://") in done.stderr


def test_a_ticket_is_fit_to_paste(tmp_path: Path) -> None:
    """`report -o x.md` has neither secrets nor user names, whichever way the log came, unless --no-redact says so; the
    other forms are the owner's and have them."""
    log = (
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/home/jdoe/train.py", line 3, in main\n'
        "[rank0]: RuntimeError: bad token hf_abcdefghijklmnopqrstuvwxyzABCDEFGH password=hunter22secret\n"
    )
    (tmp_path / "job.log").write_text(log)
    words = ("hf_abcdef", "hunter22", "jdoe")
    for source, given in (("job.log", None), ("-", log)):
        command = [sys.executable, "-m", "hangscope", "report", source, "-o", "x.md", "--force"]
        subprocess.run(command, cwd=tmp_path, input=given, text=True)
        ticket = (tmp_path / "x.md").read_text()
        assert "RuntimeError" in ticket and "/train.py:3" in ticket
        assert not [word for word in words if word in ticket]
    assert hangscope("report", "job.log", "-o", "y.md", "-o", "y.txt", "--no-redact", cwd=tmp_path).returncode == 1
    assert "hf_abcdef" in (tmp_path / "y.md").read_text() and "hunter22" in (tmp_path / "y.txt").read_text()
