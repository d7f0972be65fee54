"""What Python programs themselves say that their threads wait for, read in their memory: nothing is attached or asked.

Of a frame the function and its line, and of a few known functions one argument: the key that is waited for in PyTorch's
store, the path of a request. Never a header, a body, a query or what stands before an address's host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from hangscope.sources import python_values as values
from hangscope.sources import stacks
from hangscope.sources.cannot_read import CannotRead, Torn
from hangscope.sources.process_memory import ProcessMemory, mappings
from hangscope.sources.process_waits.schema import KEY
from hangscope.sources.python_code import CodeLine, Interpreter, interpreter_of

SECONDS = 0.5
"""For one process."""
MOST_TEXT = 160
_STACK = 8
_MOST_KEYS = 4
_STORE = re.compile(r"(?:torch\._C\._distributed_c10d\.|torch\.distributed\.)?\w*Store")
_OWN_LIBRARIES = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3\.\d+/|^<frozen ")
_OF_LIBRARY = re.compile(r"/(?:site|dist)-packages/(\w+)/")
_ANSWERS = {
    "grpc": "a gRPC call",
    "zmq": "a ZMQ message",
    "redis": "an answer of Redis",
    "psycopg": "a query of Postgres",
    "psycopg2": "a query of Postgres",
    "asyncpg": "a query of Postgres",
    "pymysql": "a query of MySQL",
    "httpx": "an HTTP answer",
    "requests": "an HTTP answer",
    "urllib3": "an HTTP answer",
    "aiohttp": "an HTTP answer",
    "boto3": "an answer of S3",
    "botocore": "an answer of S3",
    "mpi4py": "a call of MPI",
    "ucp": "a transfer of UCX",
    "nixl": "a transfer of NIXL",
    "mooncake": "a transfer of Mooncake",
}
_OF_STANDARD = {
    "/http/client.py": "an HTTP answer",
    "/multiprocessing/synchronize.py": "a semaphore of multiprocessing",
}
_FOR_WORK = (
    *("/threading.py", "/queue.py", "/selectors.py", "/socketserver.py", "/concurrent/futures/thread.py"),
    *("/multiprocessing/connection.py", "/multiprocessing/queues.py", "/asyncio/base_events.py"),
)
_REQUESTS = (
    ("urllib3/connectionpool.py", "urlopen"),
    ("requests/sessions.py", "request"),
    ("httpx/_client.py", "request"),
)


@dataclass(frozen=True, slots=True)
class Said:
    place: str
    idles: bool
    says: str


def said_by(pid: int) -> dict[int, Said]:
    """By thread. Empty where no Python runs that is known, or where its memory may not be read."""
    try:
        with ProcessMemory(pid, SECONDS) as memory:
            files, _ = mappings(pid)
            python = interpreter_of(memory, files)
            if python is None or python.free_threaded:
                return {}
            return {thread: _said(python, frames) for thread, frames in stacks.thread_frames(python, pid) if frames}
    except (CannotRead, Torn, OSError):
        return {}


def _said(python: Interpreter, frames: Sequence[tuple[int, CodeLine]]) -> Said:
    own = next((line for _, line in frames if not _OWN_LIBRARIES.search(line.filename)), None)
    place = "" if own is None else f"{own.name} ({own.filename.rpartition('/')[2]}:{own.line})"
    try:
        says = _store_key(python, frames[0][0]) or _request(python, frames) or _library(line for _, line in frames)
    except Torn:
        says = ""
    idles = frames[0][1].filename.endswith(_FOR_WORK) and not says
    return Said(place[:MOST_TEXT], idles, says[:MOST_TEXT])


def _store_key(python: Interpreter, frame: int) -> str:
    """The keys that stand on the stack behind a store of PyTorch's, as they do in a call of its methods."""
    keys: list[str] = []
    store = False
    for address in values.on_stack(python, frame, _STACK):
        try:
            if store:
                more = _texts(python, address)
                if not more:
                    break
                keys += more
            else:
                store = _STORE.fullmatch(values.type_name(python, address)) is not None
        except Torn:
            break
    return f"{KEY}{' or '.join(keys[:_MOST_KEYS])} of its store" if keys else ""


def _texts(python: Interpreter, address: int) -> list[str]:
    kind = python.kind(address)
    if kind == b"str":
        return [python.text(address)]
    if kind not in (b"list", b"tuple"):
        return []
    members = values.members(python, address, _MOST_KEYS * 64)[:_MOST_KEYS]
    return [python.text(each) for each in members if python.kind(each) == b"str"]


def _request(python: Interpreter, frames: Iterable[tuple[int, CodeLine]]) -> str:
    """The outermost call that names a request: the innermost may know of its path alone."""
    found = ""
    for frame, line in frames:
        if any(line.name == name and line.filename.endswith(file) for file, name in _REQUESTS):
            given = values.frame_locals(python, frame)
            method, url = (given.get(name, 0) for name in ("method", "url"))
            if method and url and python.kind(method) == b"str" and python.kind(url) == b"str":
                found = f"{python.text(method)[:8]} {_without_secrets(python.text(url))}"
    return found


def _without_secrets(url: str) -> str:
    """The host and path of an address."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    return f"{parts.hostname or ''}{port}{parts.path}"


def _library(lines: Iterable[CodeLine]) -> str:
    """Whose answer it is, by the library through which the program waits."""
    for line in lines:
        known = _OF_LIBRARY.search(line.filename)
        if known and known[1] in _ANSWERS:
            return _ANSWERS[known[1]]
        for file, answer in _OF_STANDARD.items():
            if line.filename.endswith(file):
                return answer
        if not _OWN_LIBRARIES.search(line.filename):
            return ""
    return ""
