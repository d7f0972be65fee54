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

SOURCE = Path(__file__).parents[2] / "src"


def wrote(folder: Path, text: str, name: str = "hangscope.toml") -> Path:
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
    wrote(tmp_path, 'dir = "/shared/hangs"\nkeep = true\nmetrics-port = 9400\n')
    assert config_file.load(None, tmp_path) == {"directory": "/shared/hangs", "keep": True, "metrics_port": "9400"}


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
        ("stall_after = 3", "there is no setting 'stall_after'", "did you mean stall-after?"),
        ("colour = 1", "there is no setting 'colour'", "it may have: dir, job"),
        ('stall-after = "3"', "stall-after must be a number, not a string", None),
        ("stall-after = true", "stall-after must be a number, not true or false", None),
        ("keep = 1", "keep must be true or false, not a number", None),
        ("max-incidents = 1.5", "max-incidents must be a whole number, not a number", None),
        ("on-hang = ['kill', 3]", "on-hang must be a string or a list of strings, not a number", None),
        ("job = 1979-05-27", "job must be a string, not a date or time", None),
        ("[run]\nkeep = true", "there is no setting 'run'", "it may have"),
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


def test_a_command_is_taken_only_from_a_file_that_is_ours_alone(tmp_path: Path) -> None:
    """Where others can write it, or it is somebody else's, a command in it is refused; report and kill are not."""
    path = wrote(tmp_path, 'on-hang = ["kill", "echo hi"]')
    assert config_file.load(None, tmp_path) == {"on_hang": ("kill", "echo hi")}
    path.chmod(0o664)
    with pytest.raises(SettingsError, match="others may write the file") as error:
        config_file.load(None, tmp_path)
    assert "--on-hang" in (error.value.hint or "")
    if os.geteuid() == 0:
        path.chmod(0o644)
        os.chown(path, 12345, 12345)
        os.chown(path, 12345, 12345)
        assert refused_for_user(path)
    path.write_text('on-hang = ["kill", "report"]')
    path.chmod(0o666)
    assert config_file.load(None, tmp_path) == {"on_hang": ("kill", "report")}


def refused_for_user(path: Path) -> bool:
    """Whether another user than the file's owner is refused: asked in a process that has become one."""
    code = (
        "import os, sys; from pathlib import Path; from hangscope.cli import config_file; from hangscope.errors import"
        f" SettingsError\nos.setuid(23456)\ntry:\n    config_file.load(Path({str(path)!r}), Path('/'))\n"
        "except SettingsError as error:\n    sys.exit('belongs to somebody else' in str(error) and 9)"
    )
    for folder in path.parents:  # pytest keeps its folders to itself
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SOURCE)})
    return done.returncode == 9


def test_a_pipe_or_a_huge_file_is_an_error_and_no_wait(tmp_path: Path) -> None:
    """What is no regular file, or too large for settings, is said."""
    os.mkfifo(tmp_path / "hangscope.toml")
    with pytest.raises(SettingsError, match="a pipe, not a file"):
        config_file.load(None, tmp_path)
    (tmp_path / "hangscope.toml").unlink()
    wrote(tmp_path, "#" * (config_file.MOST_BYTES + 1))
    with pytest.raises(SettingsError, match="no file of settings"):
        config_file.load(None, tmp_path)


def test_options_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For one setting given three times, the nearest counts: told apart by which value is refused."""
    monkeypatch.chdir(tmp_path)
    wrote(tmp_path, "grace = -1")
    monkeypatch.delenv("HANGSCOPE_GRACE", raising=False)
    assert main(["run", "--", "true"]) == 2  # the file's
    assert "--grace must be" in capsys.readouterr().err
    monkeypatch.setenv("HANGSCOPE_GRACE", "x")
    assert main(["run", "--", "true"]) == 2  # the environment's
    assert "'x' is not a valid float" in capsys.readouterr().err
    assert main(["run", "--grace", "1", "--", "no-such-program"]) == 127  # the option's, which is well
    wrote(tmp_path, 'on-hang = "no-such-program-a"')
    assert main(["run", "--grace", "1", "--", "true"]) == 2
    assert "no-such-program-a" in capsys.readouterr().err
    monkeypatch.setenv("HANGSCOPE_ON_HANG", "no-such-program-b")
    assert main(["run", "--grace", "1", "--", "true"]) == 2
    assert "no-such-program-b" in capsys.readouterr().err
    assert main(["run", "--grace", "1", "--on-hang", "no-such-program-c", "--", "true"]) == 2
    assert "no-such-program-c" in capsys.readouterr().err
