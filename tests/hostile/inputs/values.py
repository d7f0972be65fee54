"""Values of the wrong type, size or form, and how they get into good ones."""

# ruff: noqa: E501  # one hostile thing a line is easier to read than one over six lines

from __future__ import annotations

import re
from random import Random
from typing import Any

XSS = "<script>hsx()</script><img src=http://evil.example/i onerror=hsx()>"
STRINGS = (
    "", " ", "\0", "a\0b", "\x1b[2J\x1b]0;owned\x07", "\x9b31m", "\r\rroot@host:~# ", "\u202egnp.exe", "\u2066x\u2069",
    "z\u200bw\u200d\ufeff", "\u2028\u2029", "\ud800", "\udcff\udc80", "\U000e0041\U000e0042", XSS, '"><svg onload=hsx()>',
    "javascript:hsx()", "</script><script>hsx()</script>", "<!--", "]]>", "{{7*7}}${7*7}", "](http://evil.example/x)",
    "![x](http://evil.example/i.png)", "@everyone @root", "```\n# Owned\n```", "a|b|c\n|-|-|", "`", "%s%n%x", "{0!r}",
    "../../../etc/passwd", "/etc/shadow", "C:\\x", "rank=99999999999", "x" * 5_000, "é" * 3_000, "a\u0301" * 2_000, "[" * 900,
    "0", "-1", "1e99", "NaN", "null", "0x" + "f" * 40, "9" * 400, "nccl:all_reduce", "[0, 1, 99999999999]", "[" + "1, " * 9_000,
    "[rank3]:", "\t" * 50, "\u05d0\u05d1 abc", "[36m", "Ⅷ٣", "٣", "²",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2**31, 2**31 - 1, -(2**31), 2**32, 2**53 + 1, 2**63, 2**63 - 1, -(2**63), 2**64, 2**70, -(2**70), 10**40,
    1e308, -1e308, 5e-324, 0.5, float("nan"), float("inf"), float("-inf"), True, False, 4_000_000_000, 1 << 20, (1 << 20) - 1,
)  # fmt: skip


def value(rng: Random, *, plain: bool = True, depth: int = 0) -> Any:
    """Any value of the wrong type, size or form."""
    pick = rng.random()
    if pick < 0.4:
        return rng.choice(STRINGS)
    if pick < 0.7:
        return rng.choice(NUMBERS)
    if pick < 0.75:
        return None
    if pick < 0.8 and not plain:
        return rng.choice(
            (b"\xff\0x", (1, 2), bytearray(b"x"), {1, 2}, {1: 2, None: 3}, ("0",), ((), ()), complex(1, 2))
        )
    if depth > 3:
        return []
    if pick < 0.85:
        deep: Any = rng.choice(([], {}, "x"))
        for _ in range(rng.choice((3, 40, 90))):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        return deep
    if pick < 0.93:
        return [value(rng, plain=plain, depth=depth + 1) for _ in range(rng.choice((0, 1, 3, 30)))]
    return {
        rng.choice(STRINGS)[:200]: value(rng, plain=plain, depth=depth + 1) for _ in range(rng.choice((0, 1, 3, 30)))
    }


def places(whole: Any, limit: int = 4_000) -> list[tuple[Any, Any]]:
    """(container, key) of everything in it."""
    found: list[tuple[Any, Any]] = []
    waiting = [whole]
    while waiting and len(found) < limit:
        one = waiting.pop(0)
        pairs = list(one.items()) if isinstance(one, dict) else list(enumerate(one)) if isinstance(one, list) else []
        for key, inner in pairs:
            found.append((one, key))
            if isinstance(inner, (dict, list)):
                waiting.append(inner)
    return found


def spoil(rng: Random, whole: Any, *, plain: bool = True, times: int = 0) -> Any:
    """The same with some of its values replaced, taken out, renamed or doubled."""
    for _ in range(times or rng.choice((1, 1, 2, 5, 20))):
        found = places(whole)
        if not found:
            return value(rng, plain=plain)
        holder, key = rng.choice(found[:12]) if rng.random() < 0.4 else rng.choice(found)
        what = rng.random()
        if (isinstance(holder, list) and not key < len(holder)) or (isinstance(holder, dict) and key not in holder):
            continue
        if what < 0.7:
            holder[key] = value(rng, plain=plain)
        elif what < 0.8:
            del holder[key]
        elif isinstance(holder, dict):
            holder[rng.choice(STRINGS)[:300]] = holder[key] if what < 0.9 else holder.pop(key)
        else:
            holder.extend(holder[:50] * 2)
    return whole


ABSURD = (
    "99999999999",
    "-1",
    "1e99",
    "0",
    "9" * 300,
    "4294967296",
    "18446744073709551616",
    "NaN",
    "٣",
    "1048576",
    "",
    "1.5",
    "0x",
)


def absurd(rng: Random, line: str) -> str:
    """A line with absurd numbers, with something put into it, or cut."""
    how = rng.random()
    if how < 0.6:
        share = rng.choice((0.2, 1.0))
        return re.sub(r"\d+", lambda at: rng.choice(ABSURD) if rng.random() < share else at[0], line)
    if how < 0.8:
        at = rng.randrange(len(line) + 1)
        return line[:at] + rng.choice(STRINGS) + line[at:]
    return line[: rng.randrange(len(line) + 1)]
