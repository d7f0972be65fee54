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
from itertools import takewhile
from pathlib import Path
from shutil import copytree
from typing import Any

import click
import pytest

import hangscope
from hangscope.cli.main import VERBS, cli, main
from hangscope.report.contract_schema import schema
from hangscope.sources import slices

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SKILL = ROOT / "skills" / "hangscope" / "SKILL.md"
POLICIES = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "ROADMAP.md")]
PAGES = [README, *POLICIES, SKILL, *sorted((ROOT / "docs").glob("*.md"))]
PRESENT = [verb for verb in VERBS if find_spec(f"hangscope.cli.verbs.{verb.replace('-', '_')}") is not None]
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
    command = import_module(f"hangscope.cli.verbs.{verb.replace('-', '_')}").command
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert [param.opts for param in options if not any(name in page for name in param.opts)] == []


def long_options(command: click.Command) -> set[str]:
    """Of a verb, and of the words below it where it has some."""
    mine = {name for param in command.params for name in (*param.opts, *param.secondary_opts) if name.startswith("--")}
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return mine.union(*map(long_options, below))


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
        known = long_options(import_module(f"hangscope.cli.verbs.{verb.replace('-', '_')}").command) | {"--help", "--"}
        for word in words:
            option = re.match(r"\[?(--[a-z][a-z-]*)", word)
            assert option is None or option[1] in known, f"{page.name}: hangscope {verb} has no {option[1]}"


def command_lines(text: str) -> list[list[str]]:
    """Every whole hangscope command line in the code of a page: no synopsis with options in brackets, no remark."""
    code = re.findall(r"```(?:sh|console)?\n(.*?)```", text, re.DOTALL) + re.findall(
        r"(?:^    .*\n)+", text, re.MULTILINE
    )
    found = []
    for line in "\n".join(code).replace("\\\n", " ").splitlines():
        match = re.match(r"\s*(?:\$ )?hangscope ([a-z-]+ .*)", line)
        if match and not re.search(r"\[-|\[DIR|…", match[1]):
            words = shlex.shlex(match[1], posix=True, punctuation_chars="|>&;")
            words.whitespace_split = True
            found.append(list(takewhile(lambda word: word[0] not in "|>&;", words)))
    return found


def test_every_command_line_on_a_page_is_taken() -> None:
    """Options, their values and arguments are such as the verb takes, on every page."""
    refused = []
    taken = 0
    for page in PAGES:
        for verb, *words in command_lines(page.read_text(encoding="utf-8")):
            command = cli.get_command(click.Context(cli), verb)
            assert command is not None, f"{page.name}: hangscope {verb}"
            try:
                command.make_context(verb, list(words)).close()
            except click.exceptions.Exit:
                pass  # --help
            except click.ClickException as error:
                refused.append(f"{page.name}: hangscope {verb} {' '.join(words)}: {error.format_message()}")
            taken += 1
    assert refused == []
    assert taken > 60


def test_the_tutorial_is_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """What docs/first-hang.md says to do with a hang works as it stands, on an incident of a real job."""
    copytree(ROOT / "tests" / "incidents" / "sleep", tmp_path / "hangscope")
    monkeypatch.chdir(tmp_path)
    asked = command_lines((ROOT / "docs" / "first-hang.md").read_text(encoding="utf-8"))
    steps = [words for words in asked if "hangscope/" in words and words[0] != "run"]
    assert [words[0] for words in steps] == ["diagnose", "bundle", "report"]
    assert [main(words) for words in steps] == [1, 0, 1]
    assert capsys.readouterr().out.startswith("HANG   rank 2")
    assert "rank 2" in (tmp_path / "hang.html").read_text()
    assert main(["diagnose", "job.tar.gz"]) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every link to a file of the project leads to a file."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


TOPS = ("src", "tests", "benchmarks", "native", "docs", "release", "skills", "containers")
FILES = [
    path.relative_to(ROOT)
    for top in TOPS
    for path in (ROOT / top).rglob("*")
    if "__pycache__" not in path.parts and path.is_file()
]
PROJECT = {*FILES, *(folder for path in FILES for folder in path.parents)}
TAILS = {"/".join(path.parts[start:]) for path in PROJECT for start in range(len(path.parts))}
"""Every way to name a file or folder of the project by the end of its path: `reader/load.py`, `kits/secrets`."""
FOLDERS = {part for path in FILES for part in path.parent.parts}
ROOMS = {path.parts[2] for path in FILES if path.parts[:2] == ("src", "hangscope") and len(path.parts) > 3}
PATH = re.compile(r"(?<![\w/.:~*{-])(?:[a-z_]+/)+(?:[\w*-]+(?:\.[a-z]+)*)?")
FILE = re.compile(r"`([a-z_]+\.(?:py|c|h))`")
MODULE = re.compile(r"(?<![\w./-])hangscope(?:\.[a-z_]\w*)+(?!/\d|\.\w|[\w/-])")
BLACK_BOX = "hangscope.recorder.setup.libhangscope_blackbox"
"""A library that NCCL loads: there is no module of that name."""
ELSEWHERE = {
    "train.py",
    "hangscope.toml",
    "hangscope.env",
    "hangscope.db",
    "hangscope.example.org",
    "src/*.egg",
    BLACK_BOX,
    *re.findall(r'"(hangscope\.[a-z_.]+)"', (ROOT / "src" / "hangscope" / "cli" / "otel_event.py").read_text()),
}
"""What is named in the same way, and is not ours or no module, such as the attributes of an event."""


def missing_path(named: str) -> bool:
    """Whether a path that begins with a folder of ours leads nowhere; a star is anything. Where no ending says that it
    is a file of ours, it has to begin with a room or a top folder: `logs/rank_0` may well be of an incident."""
    named = named.removeprefix("src/hangscope/").rstrip("/")
    first = named.partition("/")[0]
    if first not in (FOLDERS if named.endswith((".py", ".c", ".h", ".js")) else (*TOPS, *ROOMS)):
        return False
    if "*" in named:
        return not any(any(top.glob(named)) for top in (ROOT, ROOT / "src" / "hangscope"))
    return named not in TAILS


def missing_module(named: str) -> bool:
    """Whether `hangscope.reader.load.load` names neither a package, nor a module, nor anything that one mentions."""
    place = ROOT / "src"
    for part in named.split("."):
        inside = place / part
        if not any(path.is_file() for path in module_files(inside)):
            here = next((path.read_text(encoding="utf-8") for path in module_files(place) if path.is_file()), "")
            return re.search(rf"\b{part}\b", here) is None
        place = inside
    return False


def module_files(place: Path) -> list[Path]:
    return [place / "__init__.py", place.with_suffix(".py"), place.with_suffix(".pyi")]


def test_files_and_modules_that_a_text_names_exist() -> None:
    """Every path and dotted module on a page, in a comment or a docstring is one of the project's today."""
    code = [ROOT / path for path in FILES if path.parts[0] in ("src", "native") and path.suffix in (".py", ".c", ".h")]
    settings = [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "setup.py"]
    missing = {}
    for page in (*PAGES, *(ROOT / "tests").rglob("README.md"), *settings, *code):
        text = page.read_text(encoding="utf-8")
        found = {name for name in PATH.findall(text) if missing_path(name)}
        found |= {name for name in FILE.findall(text) if name not in TAILS}
        found |= {name for name in MODULE.findall(text) if missing_module(name)}
        if found - ELSEWHERE:
            missing[str(page.relative_to(ROOT))] = found - ELSEWHERE
    assert missing == {}


SCRIPTS = sorted(
    {name for page in PAGES for name in re.findall(r"python (\S+/\w+\.py)", page.read_text(encoding="utf-8"))}
)
START = """
import os, runpy, sys
script = sys.argv[1]
sys.path[0] = os.path.dirname(os.path.abspath(script))
runpy.run_path(script, run_name="imported")
"""


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_that_a_page_runs_can_be_started(script: str) -> None:
    """`python tests/….py` from the project's root finds everything that it imports."""
    done = subprocess.run([sys.executable, "-c", START, script], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_on_a_page_exist(page: Path) -> None:
    """Every `make` target that a page names is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`|    )make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name} names make {target}"


def test_the_skill_knows_every_outcome_and_confidence() -> None:
    """What an assistant is told of a verdict's first word and of its confidence is all that the contract has."""
    skill = SKILL.read_text(encoding="utf-8")
    contract = schema()
    (outcomes,) = re.findall(r"^- `outcome` is the first word: ([a-z, ]+)\.", skill, re.MULTILINE)
    assert outcomes.split(", ") == contract["properties"]["outcome"]["enum"]
    for level in filter(None, contract["properties"]["confidence"]["enum"]):
        assert re.search(rf"\b{level}: ", skill), level


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


def test_each_promise_names_a_test_that_is_there() -> None:
    """docs/security.md promises only what a test holds."""
    page = (ROOT / "docs" / "security.md").read_text()
    table = page.partition("## What is promised")[2].partition("\n## ")[0]
    file = ""
    named = 0
    for place, name in re.findall(r"`(tests/[\w/]+\.py|…)::(\w+)`", table):
        file = file if place == "…" else place
        assert f"\ndef {name}(" in (ROOT / file).read_text(), f"{file}::{name}"
        named += 1
    assert named > 30
    promises = [line for line in table.splitlines() if line.startswith("| ") and "promise | test" not in line]
    assert all("::test_" in line for line in promises)


def test_every_path_of_the_map_exists() -> None:
    """The table of docs/map.md leads to files and folders that are there, and its picture shows rooms that are."""
    text = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ") and "`" in line]
    paths = [path for row in rows for path in re.findall(r"`([\w/.]+)`", row)]
    package = ROOT / "src" / "hangscope"
    assert len(paths) > 30
    assert not [path for path in paths if path != "src/hangscope/" and not (package / path).exists()]
    picture = text.partition("```mermaid")[2].partition("```")[0]
    rooms = {room for line in picture.splitlines() if "-->" in line for room in re.findall(r"[a-z_]+(?=\s|$)", line)}
    there = {path.name.removesuffix(".py") for path in package.iterdir()}
    assert rooms - {"read.py", "py"} <= there


def test_the_recipe_for_a_source_names_its_parts() -> None:
    """Contributing's recipes name what a source may have; no slice has a part that the recipe does not know."""
    recipe = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for part, has in (("capture", "save"), ("schema", "FOLDER"), ("read", "recognise"), ("settings", "check")):
        assert slices.found(part, has)
        assert f"`{part}.py`" in recipe and has in recipe
