"""`expect_pause`: training code says that it is about to stand still on purpose. A no-op without `hangscope run`.

    with hangscope.expect_pause("evaluation", at_most_s=900):
        evaluate(model)

The announcement is a small file beside this process's socket, some tens of microseconds to write; no thread, no lock
that anybody waits for, no error ever. Standard library only: it runs inside training jobs.
"""

from __future__ import annotations

import json
import os
import threading
import time
from types import TracebackType

ENDING = ".pause"
"""What the file's name ends with, after the process id."""
MOST_REASON = 200


class _Announced:
    """The pauses that this process is in now. A forked child starts with none: its parent's are not its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.inside: dict[int, tuple[str, float, float | None]] = {}


_announced = _Announced()


def _own() -> _Announced:
    global _announced
    if _announced.pid != os.getpid():
        _announced = _Announced()
    return _announced


class expect_pause:  # used as a function, like contextlib.suppress
    """While the block runs, no rank's wait counts as a stall, for at most `at_most_s` seconds where that is given; nor
    does `hangscope run --on-hang kill` end the job for it.

    Can be nested, and used in several threads at once: the pause lasts until the last block is left. It costs nothing
    where `hangscope run` does not watch, and may be entered again and again.
    """

    __slots__ = ("_at_most_s", "_keys", "_reason")

    def __init__(self, reason: str = "", *, at_most_s: float | None = None) -> None:
        if at_most_s is not None and not at_most_s > 0:
            raise ValueError("at_most_s must be a number of seconds above 0, or None")
        self._reason = str(reason)[:MOST_REASON]
        self._at_most_s = at_most_s
        self._keys: list[object] = []

    def __enter__(self) -> expect_pause:
        folder = os.environ.get("HANGSCOPE_SOCKETS")
        if folder:
            key = object()  # its address is unique for as long as it is kept
            self._keys.append(key)
            now = time.time()
            until = None if self._at_most_s is None else now + self._at_most_s
            own = _own()
            with own.lock:
                own.inside[id(key)] = (self._reason, now, until)
                _write(folder, own)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        folder = os.environ.get("HANGSCOPE_SOCKETS")
        if not self._keys:
            return
        key = self._keys.pop()
        own = _own()
        with own.lock:
            if own.inside.pop(id(key), None) is not None and folder:
                _write(folder, own)


def _write(folder: str, own: _Announced) -> None:
    """What holds now; after the last pause, when it ended: whoever looks then must not take the wait for a stall."""
    pauses = list(own.inside.values())
    now = time.time()
    value: dict[str, object] = {"ended": now}
    if pauses:
        open_ended = any(until is None for _, _, until in pauses)
        value = {
            "reason": next((reason for reason, _, _ in pauses if reason), ""),
            "since": min(since for _, since, _ in pauses),
            "until": None if open_ended else max(until or now for _, _, until in pauses),
        }
    try:
        _replace(folder, f"{own.pid}{ENDING}", json.dumps(value).encode())
    except OSError:
        pass  # a full or vanished directory is no reason to trouble the training


def _replace(folder: str, name: str, data: bytes) -> None:
    """From a handle, and only in a directory of this user alone: whoever made one anew under its name gets nothing."""
    temporary = f"{name}.part"
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return
        try:
            os.unlink(temporary, dir_fd=handle)
        except FileNotFoundError:
            pass
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=handle), "wb") as stream:
            stream.write(data)
        os.replace(temporary, name, src_dir_fd=handle, dst_dir_fd=handle)
    finally:
        os.close(handle)
