"""The tests are tested: each can fail. What a test promises in its docstring, something in it must check."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import run_failed_again

HERE = Path(__file__).parent
Function = ast.FunctionDef | ast.AsyncFunctionDef
FAILS = {"pytest.raises", "pytest.fail", "pytest.warns"}
LISTINGS = {"glob", "rglob", "iterdir", "listdir", "scandir"}
"""What comes back empty once a folder has moved, and then a loop over it checks nothing."""

WITHOUT_ASSERTION: dict[str, str] = {}
"""Test → why it needs none."""


@cache
def files() -> list[Path]:
    return sorted(HERE.rglob("test_*.py"))


def ids(path: Path) -> str:
    return str(path.relative_to(HERE))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(module: ast.Module) -> list[Function]:
    return [node for node in ast.walk(module) if isinstance(node, Function)]


def calls(node: ast.AST) -> set[str]:
    return {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}


def fails(node: ast.AST) -> bool:
    """Whether something in it can fail a test."""
    asserted = any(isinstance(part, ast.Assert) for part in ast.walk(node))
    return asserted or any(name in FAILS or name.startswith("np.testing.assert_") for name in calls(node))


def checking(module: ast.Module) -> set[str]:
    """The functions of a module that can fail a test: by themselves, or by one that they call."""
    made = {function.name: function for function in functions(module)}
    found = {name for name, function in made.items() if fails(function)}
    while more := {name for name, function in made.items() if calls(function) & found} - found:
        found |= more
    return found


def cannot_fail(condition: ast.expr) -> bool:
    """Whether an assertion of this holds whatever happens: a constant, a tuple, `… or True`."""
    if isinstance(condition, ast.Constant | ast.JoinedStr):
        return True
    if isinstance(condition, ast.Tuple):
        return bool(condition.elts)
    if isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.Or):
        return any(isinstance(part, ast.Constant) and bool(part.value) for part in condition.values)
    return False


def only_in_loops(function: ast.AST) -> Iterator[ast.For]:
    """Loops over a listing that hold all the assertions of a function, and hence none where the listing is empty."""
    loops = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.For) and {name.split(".")[-1] for name in calls(node.iter)} & LISTINGS
    ]
    inside = {node for loop in loops for node in ast.walk(loop)}
    asserted = [node for node in ast.walk(function) if isinstance(node, ast.Assert)]
    if asserted and all(node in inside for node in asserted) and not calls(function) & FAILS:
        yield from loops[:1]


def test_every_test_checks_something() -> None:
    """A test asserts, expects an exception, or calls a function beside it that does."""
    idle = []
    for path in files():
        tests = {function.name for function in functions(tree(path)) if function.name.startswith("test_")}
        idle += [f"{ids(path)}::{name}" for name in tests - checking(tree(path))]
    assert not set(idle) - set(WITHOUT_ASSERTION)


def test_no_assertion_holds_whatever_happens() -> None:
    """Nothing like `assert x or True` and `assert (x, "message")`."""
    assert not [
        f"{ids(path)}, line {node.lineno}: {ast.unparse(node)}"
        for path in files()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Assert) and cannot_fail(node.test)
    ]


def test_no_empty_folder_makes_a_test_pass() -> None:
    """Where all assertions are in a loop over what a listing finds, the listing is asserted to find something."""
    assert not [
        f"{ids(path)}, line {loop.lineno}: {function.name} loops over {ast.unparse(loop.iter)}"
        for path in files()
        for function in functions(tree(path))
        if function.name.startswith("test_")
        for loop in only_in_loops(function)
    ]


def test_what_is_expected_to_fail_fails() -> None:
    """An expected failure is strict: where it does not fail, the mark has to go."""
    assert not [
        f"{ids(path)}, line {node.lineno}"
        for path in files()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and "xfail" in ast.unparse(node.func) and "strict=True" not in ast.unparse(node)
    ]


def test_no_two_files_of_tests_have_one_name() -> None:
    """In folders that are no packages pytest reads the first of them and stops at the second."""
    names = [path.name for path in files() if not path.with_name("__init__.py").exists()]
    assert sorted(names) == sorted(set(names))


def test_the_exceptions_are_needed() -> None:
    """Every test that is excepted is there and asserts nothing."""
    needed = set()
    for name in {test.partition("::")[0] for test in WITHOUT_ASSERTION}:
        module = tree(HERE / name)
        needed |= {f"{name}::{function.name}" for function in functions(module)} - {
            f"{name}::{function}" for function in checking(module)
        }
    assert set(WITHOUT_ASSERTION) <= needed


def test_the_checks_find_what_they_look_for() -> None:
    """Each check fails on a test that breaks its promise."""
    module = ast.parse("def test_a():\n    f()\ndef test_b():\n    g()\ndef g():\n    assert 1 == 2\n")
    assert checking(module) == {"test_b", "g"}
    conditions = ("True", "(x, 'm')", "x is None or True", "'text'", "f'{x}'")
    assert all(cannot_fail(ast.parse(text, mode="eval").body) for text in conditions)
    assert not any(cannot_fail(ast.parse(text, mode="eval").body) for text in ("x or y", "x is None", "x and True"))
    looped = "def test_a():\n    for path in root.glob('*'):\n        assert path\n"
    assert len(list(only_in_loops(ast.parse(looped)))) == 1
    assert not list(only_in_loops(ast.parse(looped + "    assert root\n")))


def test_tests_that_share_a_job_stay_in_one_process(tmp_path: Path) -> None:
    """The installed pytest and xdist keep a group together; pytest 9.2 does not, and every worker starts the jobs."""
    (tmp_path / "test_group.py").write_text(
        "import os, pathlib, pytest\n"
        'pytestmark = pytest.mark.xdist_group("jobs")\n'
        '@pytest.mark.parametrize("number", range(6))\n'
        "def test_one(number: int) -> None:\n"
        '    name = os.environ["PYTEST_XDIST_WORKER"]\n'
        '    pathlib.Path(__file__).with_name(f"ran-{number}").write_text(name)\n'
    )
    words = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist=loadgroup", "-p", "no:cacheprovider"]
    subprocess.run([*words, str(tmp_path)], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    ran = [path.read_text() for path in tmp_path.glob("ran-*")]
    assert len(ran) == 6
    assert len(set(ran)) == 1


def test_a_test_that_failed_in_a_group_is_run_again() -> None:
    """By the name that pytest knows it by, also where a parameter has an @ of its own: else its failure is lost."""
    failed = ["a.py::t@ray", "a.py::t@a.py::jobs", "b.py::t[x@y]", "b.py::t[x@y]@ray", "c.py::t", "c.py::t[e]]@d"]
    assert run_failed_again.names(failed) == ["a.py::t", "b.py::t[x@y]", "c.py::t", "c.py::t[e]]"]
