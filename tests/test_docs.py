"""Docs that cannot rot: their commands are run, their links followed, their options looked up.

`HANGSCOPE_UPDATE_GOLDEN=1 pytest tests/test_docs.py` writes the output of README's console blocks anew.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

import hangscope
from hangscope.cli.main import VERBS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PRESENT = [verb for verb in VERBS if find_spec(f"hangscope.cli.verbs.{verb}") is not None]
CONSOLE = re.compile(r"```console\n\$ (?P<command>[^\n]*)\n(?P<output>.*?)```", re.DOTALL)


def run(command: str) -> subprocess.CompletedProcess[str]:
    """One documented command line, run from the project's root without a terminal."""
    words = shlex.split(command)
    assert words[0] == "hangscope", f"only hangscope's own commands are run: {command}"
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    env["PYTHONPATH"] = str(Path(hangscope.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, encoding="utf-8", env=env, cwd=ROOT, timeout=120
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_is_what_happens(page: Path) -> None:
    """Every console block of a page shows exactly what its command prints today."""
    text = page.read_text(encoding="utf-8")
    for block in CONSOLE.finditer(text):
        done = run(block["command"])
        assert done.stderr == ""
        if os.environ.get("HANGSCOPE_UPDATE_GOLDEN"):
            text = text.replace(block[0], f"```console\n$ {block['command']}\n{done.stdout}```")
            page.write_text(text, encoding="utf-8")
        else:
            assert block["output"] == done.stdout


def test_the_first_screen_shows_a_real_diagnosis() -> None:
    """README's first 60 lines hold a verdict with a culprit, and the two commands."""
    first = "\n".join(README.read_text(encoding="utf-8").splitlines()[:60])
    assert re.search(r"^HANG +rank \d+", first, re.MULTILINE)
    assert "make demo" in first
    assert "make test" in first


@pytest.mark.parametrize("verb", PRESENT)
def test_every_verb_has_its_page_and_its_help(verb: str) -> None:
    """Every verb has docs/<verb>.md, a line in README, and a help text that says what it does."""
    assert (ROOT / "docs" / f"{verb}.md").is_file()
    assert f"](docs/{verb}.md)" in README.read_text(encoding="utf-8")
    done = run(f"hangscope {verb} --help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert re.search(r"\n\n  \S.*[.:]", done.stdout)


@pytest.mark.parametrize("verb", PRESENT)
def test_every_option_is_on_its_page(verb: str) -> None:
    """The page of a verb names every option that the verb has."""
    page = (ROOT / "docs" / f"{verb}.md").read_text(encoding="utf-8")
    command = import_module(f"hangscope.cli.verbs.{verb}").command
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert [param.opts for param in options if not any(name in page for name in param.opts)] == []


def long_options(command: click.Command) -> set[str]:
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts) if name.startswith("--")}


def shown_commands(text: str) -> list[list[str]]:
    """Every hangscope command line in the code of a page, up to a pipe, a comment or a command of the user's."""
    code = re.findall(r"```(?:sh|console)?\n(.*?)```", text, re.DOTALL)
    code += re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    code += re.findall(r"(?<!`)`(hangscope [^`\n]+)`", text)
    found = []
    for line in "\n".join(code).replace("\\\n", " ").splitlines():
        for match in re.finditer(r"(?:^|[\s$&;(\"'])hangscope ([a-z]+)( [^|#&;)]*)?", line):
            found.append([match[1], *(match[2] or "").split(" -- ")[0].split()])
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_a_page_exists(page: Path) -> None:
    """Verbs and options that a page shows exist."""
    for verb, *words in shown_commands(page.read_text(encoding="utf-8")):
        if verb not in VERBS:
            continue  # prose that happens to follow the name
        assert verb in PRESENT, f"{page.name} shows {verb}, which is not there"
        known = long_options(import_module(f"hangscope.cli.verbs.{verb}").command) | {"--help", "--"}
        for word in words:
            option = re.match(r"\[?(--[a-z][a-z-]*)", word)
            assert option is None or option[1] in known, f"{page.name}: hangscope {verb} has no {option[1]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every link to a file of the project leads to a file."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_on_a_page_exist(page: Path) -> None:
    """Every `make` target that a page names is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`|    )make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name} names make {target}"


def test_the_api_example_runs() -> None:
    """The example of docs/api.md runs as it stands and names the culprit."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.DOTALL)
    env = {**os.environ, "PYTHONPATH": str(Path(hangscope.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, env=env, cwd=ROOT, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.startswith("mismatch [2]\nrank 2 on gpu-worker-7: ")


def test_the_public_api_is_complete_and_documented() -> None:
    """Every name in `__all__` can be used and the API's page names it or the tree it belongs to."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in hangscope.__all__:
        value = getattr(hangscope, name)
        child = isinstance(value, type) and issubclass(value, hangscope.HangscopeError)
        assert name in page or child or name == "__version__"
    assert set(hangscope.__all__) <= set(dir(hangscope))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = hangscope.nonsense  # type: ignore[attr-defined]
