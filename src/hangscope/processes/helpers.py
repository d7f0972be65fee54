"""Starts and asks the helpers that open what a process names: of each set of rights a few, for the next question."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import threading
from typing import IO, Any, NamedTuple

from hangscope.processes.isolated_python import helper_command
from hangscope.safeio.safe_files import Refused

MODULE = "hangscope.processes.rights_helper"
_HEAD_BYTES = 64 << 10
_IDLE = 4
"""Of one set of rights: as many as are asked at once."""


class Who(NamedTuple):
    """Whose rights a helper takes."""

    user: int | None
    group: int
    groups: tuple[int, ...]
    inside: tuple[int, int] | None


_lock = threading.Lock()
_idle: dict[Who, list[subprocess.Popen[bytes]]] = {}


def ask(rights: Who, asked: dict[str, Any], limit: int, what: str) -> bytes:
    """One question to a helper with these rights; at most `limit` bytes. Raises Refused, or the OSError it met.

    A caller that gives up leaves its helper behind: the next question goes to another one."""
    with _lock:
        helper = next((one for one in _idle.get(rights, []) if one.poll() is None), None)
        if helper is not None:
            _idle[rights].remove(helper)
    if helper is None:
        helper = _start(rights, what)
    try:
        answer = _exchange(helper, asked, limit, what)
    except BaseException as error:
        if not isinstance(error, OSError) or getattr(error, "broken", False):
            _end(helper)
        else:
            _keep(rights, helper)
        raise
    _keep(rights, helper)
    return answer


def _start(rights: Who, what: str) -> subprocess.Popen[bytes]:
    helper = subprocess.Popen(
        helper_command(MODULE),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
    )
    try:
        _exchange(helper, rights._asdict(), 0, what)
    except BaseException:
        _end(helper)
        raise
    return helper


class _Broken(Refused):
    """A helper that says nothing, or what no helper says."""

    broken = True


def _exchange(helper: subprocess.Popen[bytes], asked: dict[str, Any], limit: int, what: str) -> bytes:
    assert helper.stdin is not None
    assert helper.stdout is not None
    try:
        helper.stdin.write(json.dumps(asked).encode() + b"\n")
        helper.stdin.flush()
        about_size, size = struct.unpack(">II", _whole(helper.stdout, 8))
        if about_size > _HEAD_BYTES or size > limit:
            raise ValueError
        about = json.loads(_whole(helper.stdout, about_size))
        data = _whole(helper.stdout, size)
    except (OSError, ValueError):
        raise _Broken("no answer from where its rights are", what) from None
    if "refused" in about:
        raise Refused(str(about["refused"])[:200], what)
    if "errno" in about:
        raise OSError(int(about["errno"]), os.strerror(int(about["errno"])), what)
    return data


def _whole(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise ValueError
    return data


def _keep(rights: Who, helper: subprocess.Popen[bytes]) -> None:
    with _lock:
        if len(_idle.setdefault(rights, [])) < _IDLE:
            _idle[rights].append(helper)
            return
    _end(helper)


def _end(helper: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        helper.kill()
    threading.Thread(target=helper.wait, daemon=True).start()  # one that hangs in a file system ends when it can
