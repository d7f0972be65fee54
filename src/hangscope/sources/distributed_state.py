"""What torch.distributed's own Python in another process knows and its recorder does not: the members of its groups,
which rank it is, and with which ranks the calls speak that it is in.

Read in the process's memory, in the module torch.distributed.distributed_c10d and in the frames of its functions alone:
whole numbers and names of groups, nothing that the user's own code holds. All of it has to hang together, or it is left
out: the members of a group are its places counted from 0, and two readings agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hangscope.sources import python_values as values
from hangscope.sources import stacks
from hangscope.sources.cannot_read import CannotRead, Torn
from hangscope.sources.flight_recorder import containers
from hangscope.sources.process_memory import MOST_S, ProcessMemory, mappings
from hangscope.sources.python_code import CodeLine, Interpreter, interpreter_of

T = TypeVar("T")
MODULE = "torch.distributed.distributed_c10d"
FILE = "torch/distributed/distributed_c10d.py"
NONE_YET = "torch.distributed is not imported in it"
MOST_RANKS = 1 << 17
MOST_GROUPS = 4096
MOST_CALLS = 64
_MOST_MEMBERS = 4096
_KIND = b"torch._C._distri"
"""How the type of a ProcessGroup begins: as much of it as is read."""
_NO_MEMBER = (b"int", b"object")
"""What stands for a group that the process made for others."""
_NUMBERS = ("src", "dst", "tag", "group_src", "group_dst")
_CALLS = frozenset(
    (
        *("send", "recv", "broadcast", "reduce", "gather", "scatter"),
        *("broadcast_object_list", "gather_object", "scatter_object_list", "send_object_list", "recv_object_list"),
    )
)
_MAKES_GROUP = "_new_group_with_tag"
_INIT = "init_process_group"
_INSTANCE = 16
"""pybind11 keeps the pointer to the C++ object after the head of a Python object."""
_RANK, _SIZE, _DESC = 24, 28, 40
"""c10d::ProcessGroup of torch 2.6 to 2.15: after a vtable, a count of references and the store."""
_TRIES = 4
_MOST_DESC = 200
_STACK = 8
_STORE = re.compile(r"(?:torch\._C\._distributed_c10d\.|torch\.distributed\.)?\w*Store")


class DistributedState:
    """One process, opened for reading. Raises CannotRead where that may not be, or where no known Python runs."""

    def __init__(self, pid: int, seconds: float = MOST_S) -> None:
        self.pid = pid
        self._seconds = seconds
        self._memory = ProcessMemory(pid, seconds)
        try:
            files, _ = mappings(pid)
            python = interpreter_of(self._memory, files)
            if python is None:
                raise CannotRead("no Python runs in it")
            if python.free_threaded:
                raise CannotRead("its Python runs without a GIL, whose objects are not known")
        except BaseException:
            self._memory.close()
            raise
        self._python = python
        self._module = 0
        self._threading = 0

    def __enter__(self) -> DistributedState:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._memory.close()

    @property
    def finalizing(self) -> bool:
        """Whether its Python is being taken down."""
        self._memory.renew(self._seconds)
        try:
            return self._memory.word(self._python.runtime + self._python.offsets["runtime.finalizing"]) != 0
        except Torn:
            return False

    @property
    def ends(self) -> bool:
        """Whether its main thread has come to its end: the handlers at exit run, or other threads are waited for. Its
        Python is taken down after that."""
        self._memory.renew(self._seconds)
        self._python.forget()
        try:
            self._threading = self._threading or values.module(self._python, "threading")
            if not self._threading:
                return False
            [ending] = values.named(self._python, self._threading, "_SHUTTING_DOWN")  # CPython 3.9 to 3.14
            return bool(ending) and values.truth(self._python, ending)
        except Torn:
            return False

    def groups(self) -> list[dict[str, Any]]:
        """The groups in their order: name, description, backend, global ranks by their place. Empty before there is
        one."""
        found = self._twice(lambda python: _groups_of(python, self._imported(python)))
        return [{name: value for name, value in group.items() if name != "at"} for group in found]

    def own_rank(self) -> tuple[int, int] | None:
        """(Its rank, how many there are), of the default group; None before there is one."""
        return self._twice(lambda python: _own_rank(python, self._imported(python)))

    def init_arguments(self) -> dict[str, Any] | None:
        """What init_process_group was given, where its main thread is in it; None where it is not."""
        return self._twice(lambda python: _init_arguments(python, self.pid))

    def calls(self) -> list[dict[str, Any]]:
        """The ranks, tag and group that the calls of torch.distributed were given that this process is in."""
        return self._twice(lambda python: list(_calls(python, self.pid, self._imported(python))))

    def open_stores(self) -> list[int]:
        """The threads whose innermost frame has a store of PyTorch's at hand, as one that waits in a call of it has."""
        return self._twice(lambda python: list(_open_stores(python, self.pid)))

    def gil_holder(self) -> tuple[int, ...] | None:
        """Which thread has the GIL, and exactly where it is: its frame, instruction and what that frame holds. None
        where none has it. Where several looks give the same, no other thread can have run Python in between, unless
        the very same call was made again."""
        self._memory.renew(self._seconds)
        try:
            return stacks.gil_holder(self._python)
        except Torn:
            return None

    def gil_holder_runs(self, seconds: float) -> bool:
        """Whether whoever has the GIL is seen to run Python within that time."""
        self._memory.renew(self._seconds)
        try:
            return stacks.gil_holder_runs(self._python, seconds)
        except Torn:
            return True

    def _imported(self, python: Interpreter) -> int:
        """The dict of torch.distributed's module, looked for once among all that are imported."""
        if not self._module:
            self._module = values.module(python, MODULE)
        if not self._module:
            raise CannotRead(NONE_YET)
        return self._module

    def _twice(self, read: Callable[[Interpreter], T]) -> T:
        """What two readings agree on. Raises CannotRead."""
        self._memory.renew(self._seconds)
        why = "it changed each time that it was read"
        before: Any = self
        for _ in range(_TRIES):
            self._python.forget()
            try:
                now = read(self._python)
            except Torn as error:
                why = error.reason
                before = self
                continue
            if now == before:
                return now
            before = now
        raise CannotRead(f"what its Python holds does not fit together: {why}")


def calls_of(pid: int) -> list[dict[str, Any]]:
    """The calls that a process is in. Raises CannotRead."""
    with DistributedState(pid) as state:
        return state.calls()


# ---- groups ----------------------------------------------------------------------------------------------------------


def _groups_of(python: Interpreter, module: int) -> list[dict[str, Any]]:
    tables = values.named(python, module, "_pg_names", "_pg_backend_config", "_pg_group_ranks")
    names, backends = (_by_group(python, table) for table in tables[:2])
    members = tables[2]
    found: list[dict[str, Any]] = []
    for group, places in values.items(python, members, MOST_GROUPS) if members else ():
        kind = python.kind(group)
        if kind in _NO_MEMBER:
            continue
        if not kind.startswith(_KIND):
            raise Torn("a group that is none")
        ranks = _members(python, places)
        backend = python.text(backends[group]) if group in backends else ""
        name = python.text(names[group]) if group in names else ""
        desc = _description(python, group, len(ranks))
        found.append({"at": group, "name": name, "desc": desc, "backend": backend, "ranks": ranks})
    if found and max(max(group["ranks"], default=0) for group in found) >= MOST_RANKS:
        raise Torn("a group of ranks that are none")
    return found


def _by_group(python: Interpreter, table: int) -> dict[int, int]:
    return dict(values.items(python, table, MOST_GROUPS)) if table else {}


def _members(python: Interpreter, places: int) -> list[int]:
    """Global ranks by their place in the group, which are counted from 0."""
    entries = values.items(python, places, MOST_RANKS)
    by_place = {values.whole_number(python, place): values.whole_number(python, rank) for rank, place in entries}
    if len(by_place) != len(entries):
        raise Torn("a group with two members in one place")
    ranks = [by_place.get(place, -1) for place in range(len(by_place))]
    if -1 in ranks or min(ranks, default=0) < 0 or len(set(ranks)) != len(ranks):
        raise Torn("a group whose members are not counted from 0")
    return ranks


def _description(python: Interpreter, group: int, size: int) -> str:
    """What the C++ object of a group says of it; empty where that is no text."""
    try:
        address = python.memory.word(group + _INSTANCE)
        if int.from_bytes(python.memory.read(address + _SIZE, 4), "little") != size:
            return ""
        text = containers.string(python.memory, address + _DESC)
    except Torn:
        return ""
    return text if text.isprintable() and len(text) <= _MOST_DESC else ""


def _own_rank(python: Interpreter, module: int) -> tuple[int, int] | None:
    """By the C++ object of the default group, which is the first, and has every rank at its own place."""
    groups = _groups_of(python, module)
    if not groups or groups[0]["ranks"] != list(range(len(groups[0]["ranks"]))):
        return None
    memory = python.memory
    address = memory.word(groups[0]["at"] + _INSTANCE)
    rank, size = (int.from_bytes(memory.read(address + at, 4), "little", signed=True) for at in (_RANK, _SIZE))
    if size != len(groups[0]["ranks"]) or not 0 <= rank < size:
        raise Torn("a group of another size than its members")
    return rank, size


# ---- calls -----------------------------------------------------------------------------------------------------------


def _calls(python: Interpreter, pid: int, module: int) -> Iterator[dict[str, Any]]:
    groups = _groups_of(python, module)
    count = 0
    for thread, frames in stacks.thread_frames(python, pid):
        for frame, line in frames:
            if count < MOST_CALLS and line.filename.replace("\\", "/").endswith(FILE):
                call = _call_of(python, frame, line, groups)
                if call is not None:
                    count += 1
                    yield call | {"main": thread == pid}


def _call_of(python: Interpreter, frame: int, line: CodeLine, groups: list[dict[str, Any]]) -> dict[str, Any] | None:
    if line.name not in _CALLS and line.name != _MAKES_GROUP:
        return None
    given = values.frame_locals(python, frame)
    call: dict[str, Any] = {"function": line.name, "line": line.line}
    for name in _NUMBERS:
        number = _if_of_kind(python, given.get(name, 0), b"int", values.whole_number)
        if number is not None:
            call[name] = number
    if line.name == _MAKES_GROUP:
        call["function"] = "new_group"
        ranks = given.get("ranks", 0)
        if ranks and python.kind(ranks) in (b"list", b"tuple"):
            members = values.members(python, ranks)
            if len(members) <= _MOST_MEMBERS and all(python.kind(each) == b"int" for each in members):
                call["ranks"] = [values.whole_number(python, each) for each in members]
        name = _if_of_kind(python, given.get("group_name", 0), b"str", Interpreter.text)
        return call if name is None else call | {"group": name}
    group = _group_given(python, given.get("group", 0), groups)
    if group is not None:
        call["group"] = group["name"]
        for own, of_all in (("group_src", "src"), ("group_dst", "dst")):
            if of_all not in call and 0 <= call.get(own, -1) < len(group["ranks"]):
                call[of_all] = group["ranks"][call[own]]
    return call


def _group_given(python: Interpreter, address: int, groups: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The group of an argument: None means the default one, which is the first."""
    if not address or python.kind(address) == b"NoneType":
        return groups[0] if groups else None
    return next((group for group in groups if group["at"] == address), None)


def _if_of_kind(python: Interpreter, address: int, kind: bytes, read: Any) -> Any:
    return read(python, address) if address and python.kind(address) == kind else None


def _open_stores(python: Interpreter, pid: int) -> Iterator[int]:
    for thread, frames in stacks.thread_frames(python, pid):
        for place in values.on_stack(python, frames[0][0], _STACK) if frames else ():
            try:
                name = values.type_name(python, place)
            except Torn:
                continue
            if _STORE.fullmatch(name):
                yield thread
                break


def _init_arguments(python: Interpreter, pid: int) -> dict[str, Any] | None:
    for thread, frames in stacks.thread_frames(python, pid):
        for frame, line in frames if thread == pid else ():
            if line.name == _INIT and "torch/distributed" in line.filename.replace("\\", "/"):
                given = values.frame_locals(python, frame)
                numbers = {
                    name: _if_of_kind(python, given.get(name, 0), b"int", values.whole_number)
                    for name in ("rank", "world_size")
                }
                method = _if_of_kind(python, given.get("init_method", 0), b"str", Interpreter.text)
                return {**numbers, "init_method": method}
    return None
