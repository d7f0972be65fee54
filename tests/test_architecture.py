"""The architecture is a test: imports point down, what runs in training images needs nothing, importing is cheap.

How the house reads is a test too: `house.py` counts, house_exceptions.ini lists what is still let through.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from functools import cache
from pathlib import Path

import pytest

import house

PACKAGE = Path(__file__).parents[1] / "src" / "hangscope"

BELOW: dict[str, set[str]] = {
    "__about__": set(),
    "errors": set(),
    "text": set(),
    "verdict_words": set(),
    "announce_pause": set(),
    "watch_process": {"processes"},
    "engine_roles": set(),
    "failure_kinds": {"verdict_words"},
    "model": {"sources", "engine_roles", "failure_kinds", "errors"},
    "wordings": {"failure_kinds"},
    "safeio": {"wordings", "errors"},
    "processes": {"safeio", "engine_roles", "errors"},
    "sources": {"model", "incident", "processes", "safeio", "text", "errors"},  # the model for what reads
    "incident": {"safeio", "errors", "__about__"},
    "bundle": {"sources", "incident", "safeio", "errors", "__about__"},
    "recorder": {
        "sources",
        "processes",
        "verdict_words",
        "push",
        "incident",
        "safeio",
        "text",
        "engine_roles",
        "errors",
        "__about__",
    },
    "admission": {"recorder", "safeio", "errors"},
    "pytest_plugin": {"recorder", "sources", "processes", "incident", "safeio", "errors"},
    "push": {"incident", "safeio", "text", "errors", "__about__"},
    "demo": {"errors"},
    "reader": {"sources", "verdict_words", "incident", "safeio", "wordings", "model", "engine_roles", "errors"},
    "cluster": {"recorder", "sources", "processes", "reader", "incident", "safeio", "model", "errors", "__about__"},
    "simulate": {"reader", "model", "errors", "__about__"},
    "diagnosis": {"sources", "verdict_words", "reader", "model", "text", "engine_roles", "errors"},
    "report": {
        "sources",
        "verdict_words",
        "diagnosis",
        "reader",
        "incident",
        "model",
        "text",
        "engine_roles",
        "errors",
        "__about__",
    },
    "server": {
        "failure_kinds",
        "verdict_words",
        "report",
        "diagnosis",
        "processes",  # how a Python of ours is started
        "reader",
        "bundle",
        "incident",
        "safeio",
        "model",
        "text",
        "errors",
        "__about__",
    },
    "assistant": {
        *(
            "report",
            "diagnosis",
            "recorder",
            "processes",
            "reader",
            "incident",
            "safeio",
            "model",
            "text",
            "errors",
            "__about__",
        ),
    },
    "cli": {
        "admission",
        "verdict_words",
        "assistant",
        "server",
        "push",
        "report",
        "diagnosis",
        "simulate",
        "cluster",
        "demo",
        "recorder",
        "processes",
        "reader",
        "bundle",
        "incident",
        "safeio",
        "model",
        "text",
        "errors",
        "__about__",
    },
    "__main__": {"cli"},
    "__init__": {"report", "reader", "model", "announce_pause", "watch_process", "errors", "__about__"},
}
"""What each room may import, besides itself. The two chains of the design: what judges, and what runs in the job."""

THIRD_PARTY = {
    "model": {"numpy"},
    "sources": {"numpy"},  # what reads; no capture reaches it
    "cluster": {"numpy"},
    "reader": {"numpy"},
    "simulate": {"numpy"},
    "diagnosis": {"numpy"},
    "report": {"numpy", "jinja2"},
    "cli": {"numpy", "click", "rich", "tomllib", "tomli"},  # Python 3.10 has no tomllib
    "server": {
        "numpy",
        "alembic",
        "anyio",
        "fastapi",
        "jinja2",
        "pydantic",
        "sqlalchemy",
        "starlette",
        "uvicorn",
    },  # the extra `serve`
    "pytest_plugin": {"pytest", "_pytest"},  # which loads it
    "demo": {"torch"},  # the training script that the demo starts as a process of its own
}
"""What each room may import from outside the standard library; the rooms that are not here: nothing."""

OPTIONAL = {
    "cli": {"opentelemetry"},  # events of hangs, an extra; imported where one is sent
    "server": {"fsspec"},  # blobs in an object store, an extra; imported where it is used
    "incident": {"fsspec"},  # object stores, an extra; imported where it is used
    "assistant": {"mcp", "anyio"},  # the extra `mcp`, and the loop that its SDK runs in
    "cluster": {"ray", "fsspec"},  # many machines and object stores, extras; imported where they are used
    "recorder": {"torch"},  # the companion runs inside the job, where torch is already loaded
}


def room(path: Path) -> str:
    """The part of the package that a module belongs to: its top folder or its own name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Every module that the file imports, with whether it does so at import time (not in a function or for types)."""
    return list(_imports(path, tree_of(path)))


def _imports(path: Path, tree: ast.Module) -> Iterator[tuple[str, bool]]:
    package = path.relative_to(PACKAGE.parent).parts[:-1]
    for node, late in with_lateness(tree, False):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, not late
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(part for part in (base, node.module) if part)
            yield name, not late
            for alias in node.names:  # `from hangscope import model` imports a module too
                yield f"{name}.{alias.name}", not late


def with_lateness(node: ast.AST, late: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement below, with whether it is in a function or for types alone."""
    late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    late = late or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child, late
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from with_lateness(child, late)


@cache
def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def ids(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_only_a_sources_reading_may_import_the_model() -> None:
    """What is asked for in a job, or on a bare node, imports the standard library, safeio and the incident alone."""
    needs = {
        name: {other for other, at_import in imports(path) if at_import and other.startswith("hangscope.")}
        for path in modules()
        for name in [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)]
    }
    reached: set[str] = set()
    left = [name for name in needs if name.split(".")[1] in ("recorder", "processes", "incident", "safeio", "push")]
    left += [name for name in needs if name.endswith((".capture", ".settings", ".schema"))]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left.extend(needs.get(name, ()))
    assert "hangscope.sources.nccl_ras.capture" in reached
    assert not {name for name in reached if name.startswith("hangscope.model")}
    assert not loaded_by("import hangscope.recorder.capture.capture_node") & HEAVY


def test_imports_point_down() -> None:
    """A module imports from its own room and the rooms below it, never sideways and never up."""
    rooms = {room(path) for path in modules()}
    assert not rooms - set(BELOW), "these are new rooms: say in BELOW what they may import"
    upwards = [
        f"{ids(path)} imports {name}"
        for path in modules()
        for name, _ in imports(path)
        for parts in [name.split(".")]
        if parts[0] == "hangscope" and len(parts) > 1 and parts[1] in BELOW
        if parts[1] != room(path) and parts[1] not in BELOW[room(path)]
    ]
    assert not upwards


def test_nothing_inside_imports_the_public_front() -> None:
    """Modules import each other by their own names; `import hangscope` is for users."""
    public = {f"hangscope.{name}" for name in ("load", "diagnose", "Diagnosis", "Job", "__version__")}
    assert not [f"{ids(path)} imports {name}" for path in modules() for name, _ in imports(path) if name in public]


def test_only_agreed_packages_are_imported() -> None:
    """A dependency is a decision: each room imports the packages that it is allowed, and no other."""
    agreed_by_all = {*sys.stdlib_module_names, "hangscope", "__future__"}
    others = []
    for path in modules():
        here = room(path)
        for name, at_import in imports(path):
            agreed = THIRD_PARTY.get(here, set()) | (set() if at_import else OPTIONAL.get(here, set()))
            if name.split(".")[0] not in agreed_by_all | agreed:
                others.append(f"{ids(path)} imports {name}")
    assert not others


SPEAKING = ("cli", "__main__", "recorder", "demo", "pytest_plugin")


def speaking(node: ast.AST) -> str | None:
    """What a line does that only a program may do."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        called = ast.unparse(node.func)
        return called if called in ("print", "exit", "quit", "sys.exit", "os._exit") else None
    if isinstance(node, ast.Attribute) and node.attr == "argv":
        return "sys.argv" if ast.unparse(node) == "sys.argv" else None
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
        targets = node.targets if not isinstance(node, ast.AugAssign) else [node.target]
        if any(ast.unparse(target).startswith("os.environ") for target in targets):
            return "sets os.environ"
    return None


def test_libraries_do_not_speak_for_the_program() -> None:
    """Outside the command line and what runs as a process of its own, nothing prints, exits or reads arguments."""
    for text in ("print(x)", "sys.exit(1)", "os._exit(1)", "x = sys.argv[1:]", "os.environ['A'] = 'b'", "exit()"):
        assert any(speaking(node) for node in ast.walk(ast.parse(text))), text
    found = [
        f"{ids(path)}, line {node.lineno}: {said}"  # type: ignore[attr-defined]
        for path in modules()
        if room(path) not in SPEAKING
        for node in ast.walk(tree_of(path))
        if (said := speaking(node))
    ]
    assert not found


def test_no_import_goes_in_circles() -> None:
    """The modules' imports at import time form no cycle."""
    graph: dict[str, set[str]] = {}
    names = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for p in modules()}
    for path in modules():
        me = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        graph[me] = {name for name, at_import in imports(path) if at_import and name in names and name != me}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name in done:
            return
        for other in sorted(graph[name]):
            # A package and its modules may know each other: the parent is loaded first, and only as far as it is.
            if not name.startswith(f"{other}."):
                visit(other, (*trail, name))
        done.add(name)

    for name in sorted(graph):
        visit(name, ())


def parts(name: str) -> tuple[str, str] | None:
    """The room of a module, and its part of it: a folder, or a module of its own."""
    inside = name.split(".")
    return (inside[1], inside[2]) if len(inside) > 2 else None


def test_imports_inside_a_room_go_one_way() -> None:
    """The folders of a room, and its modules beside them, import each other in one direction, as rooms do."""
    below: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for path in modules():
        mine = parts(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"))
        for name, at_import in imports(path):
            other = parts(name)
            if mine is not None and other is not None and at_import and mine[0] == other[0] and mine != other:
                below.setdefault(mine, set()).add(other)
    assert ("diagnosis", "align") in below["diagnosis", "waits"]

    def reached(part: tuple[str, str]) -> set[tuple[str, str]]:
        found: set[tuple[str, str]] = set()
        left = [part]
        while left:
            for each in below.get(left.pop(), set()) - found:
                found.add(each)
                left.append(each)
        return found

    circles = sorted(f"{room_}/{part}" for room_, part in below if (room_, part) in reached((room_, part)))
    assert not circles, "one of these has to know less: move what both need below them"


# ---- how the house reads ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> list[house.Finding]:
    return house.all_findings()


LET_THROUGH = house.exceptions()


def test_few_assignments_are_packed(found: list[house.Finding]) -> None:
    """In no room more than one line in a hundred assigns several values at once, to save lines."""
    allowed = {name: float(share) for name, share in LET_THROUGH["packed"].items()}
    for name, share in house.packed_shares(found).items():
        assert share <= allowed.get(name, house.MOST_PACKED), f"{name}: {share:.1f} in 100 lines"
        assert name not in allowed or share > house.MOST_PACKED, f"{name} is within the limit: delete its line"


def test_the_code_speaks_as_the_field_does(found: list[house.Finding]) -> None:
    """No word of our own where PyTorch engineers have one: in names, comments and messages, in all of src."""
    there = house.words_of(found)
    listed = set(LET_THROUGH["words"])
    assert not there - listed, "say it in the field's words"
    assert not listed - there, "these are gone: delete their lines in house_exceptions.ini"


def test_every_folder_says_what_lives_there() -> None:
    """Each folder's `__init__` has a docstring."""
    assert not house.undescribed()


def test_the_counts_count() -> None:
    """Packing is report from exchanging, and our own words are found in names as in prose."""
    assert house.packed(ast.parse("a, b = 1, 2\na, b = b, a\na, b = f()\n")) == [1]
    assert [word for _, word in house.own_words("self._fates = 1\n")] == ["fates"]
    assert not house.own_words("outstanding_customer = 'notwithstanding'\n")


# ---- who opens files -------------------------------------------------------------------------------------------------

OF_OS = [
    "open",
    "mkdir",
    "makedirs",
    "chmod",
    "lchmod",
    "chown",
    "rename",
    "renames",
    "replace",
    "unlink",
    "remove",
    "rmdir",
    "removedirs",
    "link",
    "symlink",
    "mkfifo",
    "mknod",
    "truncate",
    "scandir",
    "listdir",
    "walk",
    "utime",
]
OF_PATH = [
    "open",
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "mkdir",
    "chmod",
    "rename",
    "touch",
    "unlink",
    "rmdir",
    "symlink_to",
    "hardlink_to",
    "iterdir",
    "glob",
    "rglob",
]
HARMLESS = ("which", "get_terminal_size", "disk_usage")
"""What `shutil` has that opens nothing."""
OPENINGS = Path(__file__).with_name("file_openings.ini")


def touches_files(node: ast.AST) -> bool:
    """Whether this is a call that opens, lists, makes or changes a file by its path."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Name):
        return called.id == "open"
    if not isinstance(called, ast.Attribute):
        return False
    if isinstance(called.value, ast.Name) and called.value.id in ("os", "shutil"):
        return called.attr in OF_OS if called.value.id == "os" else called.attr not in HARMLESS
    return called.attr in OF_PATH


def openings() -> dict[str, int]:
    """How many such calls each module outside `safeio` has."""
    found = {
        ids(path): sum(map(touches_files, ast.walk(tree_of(path)))) for path in modules() if room(path) != "safeio"
    }
    return {name: count for name, count in found.items() if count}


def test_one_room_opens_files() -> None:
    """Files are opened, listed, made and changed in `safeio`, but for the calls that are listed with their reason."""
    listed = ConfigParser(delimiters=("=",))
    listed.optionxform = str  # type: ignore[method-assign,assignment]
    listed.read(OPENINGS)
    allowed = {name: int(said.split()[0]) for name, said in listed["openings"].items()}
    assert all(len(said.split()) > 1 for said in listed["openings"].values()), "each has a reason"
    found = openings()
    more = {name: count for name, count in found.items() if count > allowed.get(name, 0)}
    assert not more, "go through safeio, which follows no link that somebody puts in between"
    fewer = {name for name, count in allowed.items() if found.get(name, 0) < count}
    assert not fewer, "there are fewer by now: say so in file_openings.ini"


def test_what_touches_files_is_seen() -> None:
    """Calls of `open`, `os`, `shutil` and `Path` that go to a file by its path are report from others."""
    seen = (
        "open(x)",
        "os.chmod(x, 1)",
        "shutil.rmtree(x)",
        "Path(x).write_text(y)",
        "(a / b).mkdir()",
        "os.scandir(x)",
    )
    for text in seen:
        assert touches_files(ast.parse(text, mode="eval").body), text
    for text in ("os.fchmod(h, 1)", "shutil.which(x)", "text.replace(a, b)", "open_file(x)", "os.fstat(h)"):
        assert not touches_files(ast.parse(text, mode="eval").body), text


# ---- who makes numbers and times of text ----------------------------------------------------------------------------

OF_ARRAYS = (
    "reader/dumps/dump_file.py",
    "reader/dumps/normalise.py",
    "reader/dumps/entries.py",
    "sources/black_box/read.py",
    "reader/join/join_columns.py",
    "reader/join/pick_dumps.py",
    "reader/join/folder_units.py",
)
"""What turns numpy's numbers into Python's."""
OF_NUMBERS = {
    "reader/load.py": 2,  # the newest entry of a column; seconds into nanoseconds
    "sources/gpu_core/demangle.py": 1,  # at most four digits in base 36
    "sources/process_waits/read.py": 1,  # seconds of JSON, which is a number
    "sources/net_counters/read_sysfs.py": 1,  # a lid of at most six characters, in the base that it says
    "reader/logs/fabric_counters.py": 1,  # yes or no as a number
    "reader/sources/error_files.py": 1,  # seconds into nanoseconds
    "reader/logs/launchers/launcher_logs.py": 1,  # seconds into nanoseconds
}
"""How often other readers do, each with its reason."""
MAKERS = ("int", "float", "datetime", "timedelta")


def makes_numbers(node: ast.AST) -> bool:
    """Whether this may raise on text that only looks like a number or a time."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute):
        return called.attr in ("isdigit", "isdecimal", "isnumeric", "fromtimestamp", "fromisoformat", "strptime")
    literal = bool(node.args) and isinstance(node.args[0], ast.Constant | ast.Attribute)
    return isinstance(called, ast.Name) and called.id in MAKERS and not literal


def test_one_place_makes_numbers_of_text() -> None:
    """Readers turn text into numbers and times in numbers.py and times.py, which refuse what no number can be."""
    found = {
        ids(path): sum(map(makes_numbers, ast.walk(tree_of(path))))
        for path in modules()
        if room(path) == "reader" or (room(path) == "sources" and path.name.startswith("read"))
    }
    more = {name: count for name, count in found.items() if name not in OF_ARRAYS and count > OF_NUMBERS.get(name, 0)}
    assert not more, "use integer, decimal, is_number (model/numbers.py) or parse_time (model/times.py)"


def test_what_makes_numbers_is_seen() -> None:
    """Conversions of text are report from others."""
    for text in ("int(match[1])", "float(x)", "timedelta(hours=h)", "datetime(y, 1, 1)", "text.isdigit()"):
        assert makes_numbers(ast.parse(text, mode="eval").body), text
    for text in ("int(Kind.SEND)", 'float("nan")', "integer(x)", "is_number(x)"):
        assert not makes_numbers(ast.parse(text, mode="eval").body), text


# ---- what is loaded, and what it costs -------------------------------------------------------------------------------


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.splitlines()}


HEAVY = {"torch", "rich", "jinja2", "click", "numpy", "py_spy", "fsspec"}


def test_importing_hangscope_needs_nothing() -> None:
    """`import hangscope` loads neither torch nor rich nor jinja2, nor anything else outside the standard library."""
    assert not loaded_by("import hangscope") & HEAVY
    strangers = loaded_by("import hangscope") - loaded_by("pass") - set(sys.stdlib_module_names)
    assert strangers == {"hangscope"}


@pytest.mark.parametrize("name", ["hangscope.incident.layout", "hangscope.recorder", "hangscope.errors"])
def test_what_runs_in_training_images_needs_nothing(name: str) -> None:
    """The recorder and the incident's layout load the standard library alone."""
    assert not loaded_by(f"import {name}") & HEAVY


def test_the_help_is_quick() -> None:
    """`hangscope --help` loads click and nothing heavier: no numpy, no rich, no torch."""
    loaded = loaded_by("from hangscope.cli.main import main\nmain(['--help'])")
    assert "click" in loaded
    assert not loaded & (HEAVY - {"click"})


def cpu_seconds(*arguments: str) -> float:
    """What one run of Python costs, the least of several: a busy machine makes it longer, nothing makes it shorter."""
    found = []
    for _ in range(5):
        child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        found.append(used.ru_utime + used.ru_stime)
    return min(found)


def test_starting_costs_little_beside_python_itself() -> None:
    """`import hangscope` takes at most four times as long as Python's own start, `hangscope --help` ten times."""
    nothing = cpu_seconds("-c", "pass")
    assert cpu_seconds("-c", "import hangscope") < 4 * nothing
    assert cpu_seconds("-m", "hangscope", "--help") < 10 * nothing


def test_reading_and_diagnosing_never_load_torch() -> None:
    """A whole diagnosis of a recorded case loads numpy and nothing of torch, rich or jinja2."""
    case = Path(__file__).parent / "cases" / "skipped"
    loaded = loaded_by(f"import hangscope\nhangscope.diagnose(hangscope.load({str(case)!r}))")
    assert "numpy" in loaded
    assert not loaded & (HEAVY - {"numpy"})


def bytes_literals(path: Path) -> Iterator[bytes]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
            yield node.value


def test_each_formats_magic_is_in_one_file() -> None:
    """The first bytes by which a format is report stand in one module, and whoever asks for the format imports it."""
    homes = [PACKAGE / "safeio" / "file_magic.py", PACKAGE / "sources" / "black_box" / "schema.py"]
    magics = {literal for home in homes for literal in bytes_literals(home) if len(literal) > 1}
    assert {b"\xffHSNCCLB", b"\x1f\x8b", b"ustar", b"PK\x03\x04"} <= magics
    elsewhere = {
        f"{ids(path)}: {magic!r}"
        for path in modules()
        if path not in homes
        for literal in bytes_literals(path)
        for magic in magics
        if literal.startswith(magic)
    }
    assert not elsewhere


def test_the_reader_needs_only_names_and_layouts_of_an_incident() -> None:
    """How files are opened, walked and unpacked is in safeio; of an incident the reader knows what its files hold."""
    names = ("layout", "manifest", "written_before")
    allowed = {f"hangscope.incident.{name}" for name in names}
    needed = {
        name
        for path in modules()
        if room(path) == "reader"
        for name, _ in imports(path)
        if name.startswith("hangscope.incident.") and not name.startswith(tuple(f"{each}." for each in allowed))
    }
    assert needed <= allowed
