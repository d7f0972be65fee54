"""The design of the engine is a test: one place for doubt, causes that only propose, no logic that hangs on prose."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.recorded import SUITES, verdict_of
from kits.verdict_words import OWN_WORD, sentences, slips

PACKAGE = Path(__file__).parents[2] / "src" / "hangscope"
DIAGNOSIS = PACKAGE / "diagnosis"
CAUSES = DIAGNOSIS / "causes"
SHARED = "hangscope.diagnosis.causes.shared"

DOUBT = {"high", "medium", "low"}
MAY_SAY_HOW_SURE = {"diagnosis/weigh.py", "diagnosis/verdict.py"}
"""Where confidence is computed, and the schema of what is handed out."""
FLAGS = {"strength", "sure", "certain", "timeless", "outdated", "inferred", "guessed"}
"""Flags by which doubt was carried beside the answers, so that a caller could forget to ask."""
OURS = {"why", "what", "headline", "summary", "confidence_rule"}
"""Attributes that hold sentences which hangscope worded itself: gaps, findings, verdicts."""


def modules(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def ids(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def docstrings(module: ast.Module) -> set[ast.AST]:
    """The constants that are documentation, those under attributes too."""
    return {
        node.value
        for node in ast.walk(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


@pytest.mark.parametrize("path", modules(DIAGNOSIS), ids=ids)
def test_how_sure_is_said_in_one_place(path: Path) -> None:
    """The words of confidence are in the module that computes it, and nowhere else in the engine."""
    module = tree(path)
    quiet = docstrings(module)
    found = [
        node.lineno
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and node.value in DOUBT and node not in quiet
    ]
    assert not found or ids(path) in MAY_SAY_HOW_SURE, f"lines {found}"


@pytest.mark.parametrize("path", modules(DIAGNOSIS), ids=ids)
def test_doubt_is_no_flag(path: Path) -> None:
    """Nothing in the engine is called sure, certain or inferred: an answer says itself that it is not known."""
    for node in ast.walk(tree(path)):
        names = {getattr(node, field, None) for field in ("attr", "id", "arg", "name")}
        assert not names & FLAGS, f"line {getattr(node, 'lineno', 0)}: {names & FLAGS}"


@pytest.mark.parametrize("path", modules(DIAGNOSIS), ids=ids)
def test_not_known_is_neither_none_nor_false(path: Path) -> None:
    """No question is answered by `bool | None`: what is not known has a type that a caller cannot take for no."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            answer = ast.unparse(node.returns).replace(" ", "")
            assert answer not in ("bool|None", "None|bool", "Optional[bool]"), f"line {node.lineno}: {node.name}"


def causes() -> list[Path]:
    """The files that are a cause each."""
    return [path for path in modules(CAUSES) if path.name != "__init__.py" and path.parent.name != "shared"]


@pytest.mark.parametrize("path", modules(CAUSES), ids=ids)
def test_no_cause_knows_another(path: Path) -> None:
    """A cause imports no cause, nor does what causes share: their order means nothing, and one can be read alone."""
    if path == CAUSES / "__init__.py":
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        others = [name for name in names if name.startswith("hangscope.diagnosis.causes")]
        assert all(name.startswith(f"{SHARED}.") for name in others), f"line {node.lineno}: {others}"


def leading_to(module: ast.Module, name: str) -> list[ast.FunctionDef]:
    """A function of a module, and those of the module that it calls, directly or through others."""
    here = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    found: dict[str, ast.FunctionDef] = {}
    waiting = [name]
    while waiting:
        function = here.get(waiting.pop())
        if function is not None and function.name not in found:
            found[function.name] = function
            waiting += [node.id for node in ast.walk(function) if isinstance(node, ast.Name)]
    return list(found.values())


@pytest.mark.parametrize("path", causes(), ids=ids)
def test_what_a_cause_proposes_is_facts(path: Path) -> None:
    """On the way to an accusation no sentence is made and nothing is said of confidence: a cause's words do that."""
    proposing = leading_to(tree(path), "propose")
    assert proposing
    for function in proposing:
        for node in ast.walk(function):
            assert not isinstance(node, ast.JoinedStr), f"line {node.lineno}: {ast.unparse(node)}"
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in ("Finding", "Words", "who_did_what"), f"line {node.lineno}"


@pytest.mark.parametrize("path", modules(CAUSES), ids=ids)
def test_a_cause_changes_nothing(path: Path) -> None:
    """What a cause is given is the same after it: nothing is assigned to its arguments' attributes or items."""
    for function in (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)):
        given = {arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)}
        for node in ast.walk(function):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign | ast.Delete):
                targets = node.targets
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                root = target
                while isinstance(root, ast.Attribute | ast.Subscript):
                    root = root.value
                changed = root is not target and isinstance(root, ast.Name) and root.id in given
                assert not changed, f"line {target.lineno}: {ast.unparse(target)}"


def comparisons(module: ast.Module) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    """(the operands of every test of equality, containment, beginning, end or pattern; whole expression first)."""
    for node in ast.walk(module):
        if isinstance(node, ast.Compare):
            yield node, [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            tests = ("startswith", "endswith", "find", "index", "count", "removeprefix", "removesuffix", "partition")
            if node.func.attr in (*tests, "search", "match", "fullmatch", "findall", "compile"):
                yield node, [node.func.value, *node.args]
        elif isinstance(node, ast.Match):
            patterns = [case.pattern for case in node.cases]
            values = [p.value for pattern in patterns for p in ast.walk(pattern) if isinstance(p, ast.MatchValue)]
            yield node.subject, [node.subject, *values]


def texts(operand: ast.expr) -> list[str]:
    """The string constants that an operand is made of."""
    return [c.value for c in ast.walk(operand) if isinstance(c, ast.Constant) and isinstance(c.value, str)]


@pytest.mark.parametrize("path", modules(DIAGNOSIS), ids=ids)
def test_no_sentence_decides_in_the_engine(path: Path) -> None:
    """Nothing in the engine hangs on words that were written for people: what a line means, the reader says."""
    for whole, operands in comparisons(tree(path)):
        prose = [text for operand in operands for text in texts(operand) if " " in text.strip()]
        assert not prose, f"line {whole.lineno}: {prose}"
        _no_own_sentence(whole, operands, OURS | {"text"})


@pytest.mark.parametrize("path", modules(PACKAGE / "reader"), ids=ids)
def test_no_sentence_of_our_own_decides_in_the_reader(path: Path) -> None:
    """A reader looks for words in what it reads, never in a gap or a finding that hangscope worded."""
    for whole, operands in comparisons(tree(path)):
        _no_own_sentence(whole, operands, OURS)


def _no_own_sentence(whole: ast.expr, operands: list[ast.expr], ours: set[str]) -> None:
    said = any(isinstance(operand, ast.Attribute) and operand.attr in ours for operand in operands)
    constant = any(texts(operand) for operand in operands if not isinstance(operand, ast.Attribute))
    assert not (said and constant), f"line {whole.lineno}: {ast.unparse(whole)}"


@pytest.mark.parametrize("path", modules(DIAGNOSIS, PACKAGE / "report"), ids=ids)
def test_the_code_speaks_as_the_field_does(path: Path) -> None:
    """No word of our own where PyTorch engineers have one: in names, comments and messages."""
    assert not OWN_WORD.search(path.stem)
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [f"{at}: {m[0]}" for at, line in enumerate(lines, start=1) for m in OWN_WORD.finditer(line)]
    assert not found


@pytest.mark.parametrize("suite", sorted(SUITES))
def test_a_verdict_speaks_as_the_field_does(suite: str) -> None:
    """Verdicts on recorded jobs have no word of our own, no unset value, no wrong plural and no empty list."""
    truths = sorted(SUITES[suite].glob("*/truth.json"))
    assert truths
    for truth in truths:
        verdict = verdict_of(truth.parent)
        assert not slips(verdict), truth.parent.name
        words = [text for text in sentences(verdict) if OWN_WORD.search(text)]
        assert not words, truth.parent.name


def test_the_checks_find_what_they_look_for() -> None:
    """Each check fails on code that breaks its promise."""
    for bad in (
        'gap.what.startswith("dump ")',
        '"out of memory" in gap.why',
        'gap.what == "dump"',
        '"dump" in gap.what',
    ):
        ((whole, operands),) = comparisons(ast.parse(bad))
        with pytest.raises(AssertionError):
            _no_own_sentence(whole, operands, OURS)
    ((whole, operands),) = comparisons(ast.parse('line.startswith("Watchdog caught")'))
    _no_own_sentence(whole, operands, OURS)
    assert texts(operands[1]) == ["Watchdog caught"]
    calls = "def propose():\n    yield _one()\n\ndef _one():\n    return 1\n\ndef words():\n    return ''\n"
    assert [function.name for function in leading_to(ast.parse(calls), "propose")] == ["propose", "_one"]
    assert OWN_WORD.search("self._fates")
    assert OWN_WORD.search("as we were told")
    assert not OWN_WORD.search("outstanding customer notwithstanding")
