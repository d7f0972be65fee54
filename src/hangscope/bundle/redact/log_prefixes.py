"""What launchers, containers' logs and loggers put in front of every line: a block of YAML or a private key goes on
behind it."""

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


def prefix_end(data: bytes, at: int) -> int:
    """Where the prefix of the line that begins at `at` ends; `at` itself where it has none."""
    match = PREFIX.match(data, at)
    return match.end() if match else at


def prefixes(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the prefixes of all lines are, in order."""
    at = 0
    while at >= 0:
        end = prefix_end(data, at)
        if end > at:
            yield at, end
        at = data.find(b"\n", at) + 1 or -1
