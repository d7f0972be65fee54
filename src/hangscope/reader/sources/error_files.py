"""The error files that torchrun's @record leaves in TORCHELASTIC_ERROR_FILE: one exception each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hangscope.model.values import number, text, whole
from hangscope.reader.logs.log_lines import Line
from hangscope.reader.logs.tracebacks import Traceback, Tracebacks


@dataclass(frozen=True, slots=True)
class ErrorFile:
    """One torchrun error file. It does not say whose it is: the directory it lies in is named by the local rank."""

    traceback: Traceback
    exit_status: int | None
    at_ns: int | None


def is_error_file(value: Any) -> bool:
    if not isinstance(value, Mapping) or "message" not in value:
        return False
    message = value["message"]
    return isinstance(message, Mapping) and "message" in message and "extraInfo" in message


def read_error_file(value: Mapping[str, Any]) -> ErrorFile:
    message = value["message"]
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, Mapping) else {}
    seconds = number(extra.get("timestamp"))
    return ErrorFile(
        _traceback(message, text(extra.get("py_callstack")) or ""),
        whole(message.get("errorCode")),
        int(seconds * 1e9) if seconds else None,
    )


def _traceback(message: Mapping[str, Any], stack: str) -> Traceback:
    """The last exception of the stack; where there is none, the one in the message alone."""
    reader = Tracebacks()
    for index, row in enumerate(stack.split("\n"), 1):
        reader.feed(Line(index, row))
    found = reader.finish()
    if found:
        return found[-1]
    alone = Traceback(None, "", 1, None)
    alone.type, _, alone.message = str(message.get("message", "")).partition(": ")
    return alone
