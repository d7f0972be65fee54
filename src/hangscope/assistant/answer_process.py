"""The process that answers one question: it may read below the roots, write nothing, and live for so many seconds.

A question is one JSON object on standard input, the answer one on standard output. Whatever a hostile file does to the
reader, it does it here, and the server goes on.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import ExitStack
from typing import Any

from hangscope.assistant.bounded_answer import bounded
from hangscope.assistant.confined_paths import confined
from hangscope.errors import HangscopeError
from hangscope.report.safe_text import safe
from hangscope.safeio.held import held

EVERYWHERE = "."
"""Instead of a path: below all roots."""
MOST_MEMORY = 8 << 30
MOST_WRITTEN = 4096
"""Nothing is written at all; but the semaphores of a pool that reads large dumps are files to the kernel."""
GRACE_S = 5
"""The server ends us at the time that it was given; where it cannot any more, we do it ourselves after this."""


def main() -> None:
    question = json.loads(sys.stdin.buffer.read())
    _restrict(question["timeout_s"])
    json.dump(answer(question), sys.stdout)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """`{"answer": …}`, or `{"error": …, "hint": …}` where the question cannot be answered."""
    arguments = {key: value for key, value in question["arguments"].items() if value is not None}
    asked = arguments.pop("path")
    try:
        if question["tool"] == "list_incidents" and asked == EVERYWHERE:
            places = [(root, root) for root in question["roots"]]
        else:
            places = [confined(asked, question["roots"])]
        from hangscope.assistant import answers  # only here: what is refused is refused at once

        with ExitStack() as stack:
            for _, root in places:
                stack.enter_context(held(root))
            paths = [path for path, _ in places]
            return {"answer": bounded(answers.TOOLS[question["tool"]](*paths, **arguments))}
    except HangscopeError as error:
        return {"error": safe(str(error)), "hint": None if error.hint is None else safe(error.hint)}
    except OSError as error:
        return {"error": safe(f"{error.filename or asked}: {error.strerror or error}"), "hint": None}
    except MemoryError:
        return {"error": f"this evidence needs more than {MOST_MEMORY >> 30} GiB of memory", "hint": None}


def _restrict(timeout_s: float) -> None:
    """No file of ours grows beyond a page, memory ends somewhere, and so do we."""
    sys.dont_write_bytecode = True  # a cache that is cut at the limit would be read as a whole one
    os.nice(5)
    signal.alarm(int(timeout_s) + GRACE_S)
    bounds = ((resource.RLIMIT_FSIZE, MOST_WRITTEN), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, MOST_MEMORY))
    for what, most in bounds:
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
