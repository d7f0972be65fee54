"""What launchers, containers' logs and loggers put in front of every line: a block of YAML or a broken token goes on
behind it.

Those that are common are known by their form. Any other is learnt: what three lines in a row begin with, but for its
digits, up to a sign that ends a prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PREFIX = re.compile(
    rb"(?m)^(?:\[?(?:rank|default|host)? ?\d{1,6}\]?:[ ]?"
    rb"|\([\w.:,= -]{3,80}\)(?:[ ]|(?=\x1b))|\[[\w.:,/ -]{3,60}\](?:[ ]-[ ]|:?[ ]|(?=\[[\w./]{1,60}\]))"
    rb"|\d\d:\d\d:\d\d[.,]\d{1,6}[ ]|[\w.<>]{1,64}:[\w.<>]{1,64}:\d{1,6}[ ]-[ ]"
    rb"|\[\d{1,6},\d{1,6}\]<std(?:out|err|diag)>:[ ]?|[\w.-]{1,64}[ ]{1,20}\|[ ]"
    rb"|[\w.-]{1,64}:[ ](?=\[|\d{4}-)|\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d[.,\d]{0,10}(?:Z|[+-]\d\d:?\d\d)?[ ]"
    rb"|(?:stdout|stderr)[ ][FP][ ]|(?:-[ ])?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::[\w.]{1,64}:|[ ]?[:-]?[ ])"
    rb"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} +\d{1,8} [\w./-]{1,200}:\d{1,6}\][ ]"
    rb"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} [\w./-]{1,64}(?:\[\d{1,8}\])?:[ ]"
    rb"|\x1b\[[0-9;]{0,16}m[ ]?"
    rb"|-[ ](?:[\w.]{1,64}[ ]-[ ])?(?=[A-Z]{4,8}[ ]-[ ])){1,8}"
)
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_ENDS = re.compile(rb"[^ \t\-\"'{\[#].*(?:[:|>)\]][ ]?|[ ]-[ ])|[\w.-]*[/0][\w./-]*[ ]", re.DOTALL)
"""A sign, or a blank behind the one word that names a pod or a host."""
_MOST = 160


def prefix_end(data: bytes, at: int) -> int:
    """Where the prefix of the line that begins at `at` ends; `at` itself where it has none."""
    match = PREFIX.match(data, at)
    return match.end() if match else at


def _common(one: bytes, other: bytes) -> bytes:
    """What two lines begin with."""
    for at, (first, second) in enumerate(zip(one, other, strict=False)):
        if first != second:
            return one[:at]
    return min(one, other, key=len)


def prefixes(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the prefixes of all lines are, in order."""
    lines = data.split(b"\n")
    shapes = [line[:_MOST].translate(_DIGITS) for line in lines]
    learnt: dict[int, int] = {}
    place = 0
    for number, line in enumerate(lines):
        end = prefix_end(data, place)
        if end == place and number + 2 < len(lines) and shapes[number][:4] == shapes[number + 2][:4]:
            common = _common(shapes[number], shapes[number + 2])
            common = common if shapes[number + 1].startswith(common) else _common(common, shapes[number + 1])
            match = _ENDS.match(common) if len(common) > 3 else None
            if match is not None:
                learnt.update(dict.fromkeys(range(number, number + 3), match.end()))
        end = end if end > place else place + learnt.get(number, 0)
        if end > place:
            yield place, end
        place += len(line) + 1
