"""Reads many dumps at once: with the C decoder by threads, which hand columns over as they are, else by processes.

Threads read and decode ahead, which needs no GIL; what does is done by one thread alone, the caller's, because several
would only wait for each other. What is decoded ahead is bounded; what is kept of each dump is bounded by `history`.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hangscope.errors import DamagedError, contained
from hangscope.reader.dumps import decoder, dump_file, native_decoder
from hangscope.reader.find_files import Found

PARALLEL_BYTES = 16 << 20
"""Below this much of dumps a second process costs more than it saves."""
_THREADED_BYTES = 1 << 20
_MOST_WORKERS = 32
_AHEAD_BYTES = 512 << 20
"""Files that are read ahead of the one that is waited for. One file of any size always is."""


@dataclass(frozen=True, slots=True)
class Work:
    """A dump to read: its file, its form, and how many entries are kept."""

    item: Found
    form: str
    keep: int | None = None


Decoded = tuple[bytes, Any]
"""The bytes of a file, and what the C decoder found in them."""


def _decoded(item: Found) -> Decoded:
    data = item.read()
    return data, dump_file.decode_ahead(data, item.file)


def dump_of(work: Work, ahead: Callable[[], Decoded] | None = None) -> dump_file.RawDump | str:
    """The dump, or why there is none. `ahead` gives what was read and decoded before it is its turn."""
    item = work.item
    # a live poll's last answer has the form of a dump; only the name that hangscope gave it tells them apart
    role = "poll" if item.name.startswith("last_rank_") else "dump"
    try:
        data, found = ahead() if ahead is not None else (item.read(), native_decoder.UNREAD)
        return dump_file.read(data, file=item.file, role=role, keep=work.keep, found=found)
    except DamagedError as error:
        return error.reason
    except OSError as error:
        return f"cannot be read: {error}"
    except Exception as error:
        return f"not read: {contained(error)}"


def dumps_of(work: Sequence[Work]) -> Iterator[dump_file.RawDump | str]:
    """All dumps, in the order of the work."""
    cores = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, _MOST_WORKERS)
    threaded = sum(one.item.size for one in work if one.form == "pickle") if decoder.in_use() else 0
    others = sum(one.item.size for one in work) - threaded
    if cores > 1 and others >= PARALLEL_BYTES and others > threaded and _may_fork():
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(cores, mp_context=context) as pool:
            yield from pool.map(dump_of, work, chunksize=max(1, min(16, len(work) // (4 * cores))))
    elif cores > 1 and threaded >= _THREADED_BYTES:
        yield from _by_threads(work, cores)
    else:
        yield from map(dump_of, work)


def _may_fork() -> bool:
    """Only while this process has one thread: then it works in any script and no lock is held. A worker of somebody's
    process pool may have no children, and reads alone."""
    return (
        threading.active_count() == 1
        and not multiprocessing.current_process().daemon
        and "fork" in multiprocessing.get_all_start_methods()
    )


def _by_threads(work: Sequence[Work], cores: int) -> Iterator[dump_file.RawDump | str]:
    ahead: deque[tuple[Work, Future[Decoded]]] = deque()
    size = 0
    with ThreadPoolExecutor(cores, thread_name_prefix="hangscope-read") as pool:
        try:
            for one in work:
                while ahead and (size + one.item.size > _AHEAD_BYTES or len(ahead) >= 8 * cores):
                    size -= ahead[0][0].item.size
                    yield _next(ahead)
                ahead.append((one, pool.submit(_decoded, one.item)))
                size += one.item.size
            while ahead:
                yield _next(ahead)
        finally:
            for _, future in ahead:
                future.cancel()


def _next(ahead: deque[tuple[Work, Future[Decoded]]]) -> dump_file.RawDump | str:
    """The oldest of them; its bytes are let go before anybody works with the dump."""
    work, future = ahead.popleft()
    return dump_of(work, future.result)
