"""What happens to lines on their way into a paste is undone where it can be, and makes no other failure of them."""

import html
import json
import re
from collections.abc import Callable

import pytest

from hangscope.wordings import Wording
from wordings.test_catalogue import FAILURES, kinds

Damage = Callable[[str], str]


def lines(text: str) -> list[str]:
    return text.rstrip("\n").split("\n")


def each(damaged: Damage) -> Damage:
    return lambda text: "".join(f"{damaged(line)}\n" for line in lines(text))


def cut_at(width: int) -> Damage:
    def cut(text: str) -> str:
        parts = [line[at : at + width] for line in lines(text) for at in range(0, max(len(line), 1), width)]
        return "\n".join(parts) + "\n"

    return cut


UNDONE: dict[str, Damage] = {
    "quoted in a mail": each(lambda line: f"> > {line}"),
    "entities of HTML": each(html.escape),
    "entities of entities": each(lambda line: html.escape(html.escape(line))),
    "links of a chat": each(
        lambda line: re.sub(r"\b(\w+\.(?:cc|cpp|py|h)):(\d+)", r"[\1:\2](https://chat.example.org/\1)", line)
    ),
    "typographic apostrophes": each(lambda line: line.replace("'", "’")),
    "spaces that do not break": each(lambda line: line.replace(" ", "\u00a0")),
    "a viewer's line numbers": lambda text: "".join(f"{n:>5} │ {line}\n" for n, line in enumerate(lines(text), 1)),
    "a fence": lambda text: "\n".join(("```text", *lines(text), "```", "")),
    "spaces behind": each(lambda line: line + " " * 60),
    "line ends of Windows": each(lambda line: f"{line}\r"),
    "colours": each(lambda line: f"\x1b[31m{line}\x1b[0m"),
    "colours without their escape": each(lambda line: f"[31m{line}[0m"),
    "tmux's status line": lambda text: "\n".join(
        (*lines(text), '[train] 0:python3* 1:bash-            "gpu-3" 02:31 18-Nov-26', "")
    ),
    "Docker's JSON": each(lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr"})),
}
LOST: dict[str, Damage] = {
    "cut at 80": each(lambda line: line[:80]),
    "cut at 100": each(lambda line: line[:100]),
    "its beginning gone": each(lambda line: line[20:]),
    "an ellipsis in the middle": each(
        lambda line: line if len(line) < 40 else f"{line[: len(line) // 3]}…{line[len(line) // 2 :]}"
    ),
    "three dots in the middle": each(
        lambda line: line if len(line) < 40 else f"{line[: len(line) // 3]}...{line[len(line) // 2 :]}"
    ),
    "two columns": each(lambda line: f"{line[:70]:70} | step 12 loss 2.31"),
    "broken at 80": cut_at(80),
}
WITHOUT_A_LIST = [row for row in FAILURES if not row.below]
LESS_IS_KNOWN = {"missing_ranks": {"wait_timeout"}, "gpu_oom": {"exception"}, "init_timeout": {"exception"}}
"""What remains of a wording whose list, or whose reason, is cut off."""


@pytest.mark.parametrize("damage", UNDONE.values(), ids=UNDONE)
def test_damage_that_leaves_the_words_hides_no_failure(damage: Damage) -> None:
    """Every row's example is found again behind marks, links, colours and numbers that are not its own."""
    lost = [row.example for row in FAILURES if row.kind not in kinds(damage(row.example))]
    assert not lost


@pytest.mark.parametrize("damage", LOST.values(), ids=LOST)
def test_what_is_cut_becomes_no_other_failure(damage: Damage) -> None:
    """A line of which a part is gone says less, or nothing; it never says something else, least of all a mismatch."""
    other = []
    for row in FAILURES:
        made = kinds(damage(row.example)) - kinds(row.example) - LESS_IS_KNOWN.get(str(row.kind), set())
        other += [(row.example, made)] if made else []
    assert not other


@pytest.mark.parametrize(("width", "share"), [(150, 0.1), (120, 0.1), (80, 0.35)])
def test_lines_broken_at_a_width_are_put_together(width: int, share: float) -> None:
    """Of the rows without a list below, few are lost at a terminal's width: those whose own words lie in the break."""
    lost = [row.example for row in WITHOUT_A_LIST if row.kind not in kinds(cut_at(width)(row.example))]
    assert len(lost) <= share * len(WITHOUT_A_LIST)


def test_lines_that_stand_alone_are_not_joined() -> None:
    """The beginning of a wording and the end of another line are no message, unless one line fills the width."""
    row: Wording = next(row for row in FAILURES if "Memory access fault" in row.pattern)
    begins = "Memory access fault by GPU node-2 (Agent handle: 0x55d4) on address 0x7f12a4000000 was seen last week"
    assert not kinds(f"{begins}\nshort\nthe Reason: Page not present\n")
    assert row.kind in kinds(row.example)
