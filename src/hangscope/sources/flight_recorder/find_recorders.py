"""Where in a process the flight recorders are, by what its libraries export and by their tables of symbols.

The functions by which torch dumps a recorder load the pointer to it: their code is in memory, in stripped builds too.
Where an address came from does not matter, because what lies there has to prove itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hangscope.sources.cannot_read import NO_TORCH, CannotRead, Torn
from hangscope.sources.elf_symbols import Library
from hangscope.sources.flight_recorder import containers
from hangscope.sources.flight_recorder.known_layouts import LAYOUTS
from hangscope.sources.flight_recorder.layout import Layout, release_of
from hangscope.sources.flight_recorder.recorder_memory import RecorderMemory
from hangscope.sources.process_memory import Mapping, ProcessMemory

_STRING = b"RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
_EXPORTS: dict[str, tuple[bytes, ...]] = {
    "gloo": (
        b"_ZN4c10d18dump_fr_trace_jsonB5cxx11Ebb",
        b"_ZN4c10d13dump_fr_traceB5cxx11Ebbb",
        b"_ZN4c10d17getFlightRecorderE" + _STRING,
    ),
    "nccl": (
        b"_ZN4c10d20dump_nccl_trace_jsonB5cxx11Ebb",
        b"_ZN4c10d15dump_nccl_traceB5cxx11Ebbb",
        b"_ZN4c10d20dump_nccl_trace_jsonEbb",
        b"_ZN4c10d15dump_nccl_traceEbbb",
    ),
    "xccl": (
        b"_ZN4c10d20dump_xccl_trace_jsonB5cxx11Ebb",
        b"_ZN4c10d15dump_xccl_traceB5cxx11Ebbb",
        b"_ZN4c10d20dump_xccl_trace_jsonEbb",
        b"_ZN4c10d15dump_xccl_traceEbbb",
    ),
}
"""What is exported, and loads the pointer to the recorder of a backend."""
_INSTANCE = b"_ZZN4c10d14FlightRecorderI%sE3getEvE8instance"
_LOCALS: dict[str, tuple[bytes, ...]] = {
    "gloo": (_INSTANCE % b"N3c105EventE",),
    "nccl": (
        _INSTANCE % b"N3c104cuda9CUDAEventE",
        _INSTANCE % b"N2at4cuda9CUDAEventE",
        _INSTANCE % b"N3c103hip8HIPEventE",
        _INSTANCE % b"N2at3hip8HIPEventE",
        b"_ZZN4c10d14FlightRecorder3getEvE8instance",
    ),
    "xccl": (_INSTANCE % b"N2at3xpu8XPUEventE", _INSTANCE % b"N3c103xpu8XPUEventE"),
}
REGISTRY = b"_ZZN4c10d17getFlightRecorderE" + _STRING + b"E8registry"
"""From torch 2.15 on: by backend, the recorders of those that record by c10d's hooks, such as nccl2."""
LIBRARIES = {
    "libtorch_cpu.so": "gloo",
    "libtorch_cuda.so": "nccl",
    "libtorch_hip.so": "nccl",
    "libtorch_xpu.so": "xccl",
}
FOR_GPUS = frozenset(LIBRARIES) - {"libtorch_cpu.so"}
_CODE_BYTES = 1024
_BACKEND = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MOST_BACKENDS = 64
_MOST_VERSION = 16 << 10


@dataclass(slots=True)
class FoundRecorders:
    """The recorders of a process, by their backends' names, and why some are not readable."""

    recorders: dict[str, RecorderMemory]
    reasons: dict[str, str]
    torch: str


def find(memory: ProcessMemory, files: Sequence[Mapping]) -> FoundRecorders:
    """Those that exist by now and are proven. Raises CannotRead where no torch is in the process."""
    found = FoundRecorders({}, {}, "")
    libraries = [each for each in files if os.path.basename(each.path) in LIBRARIES]
    if not libraries:
        raise CannotRead(NO_TORCH, "nothing to do if it is still starting")
    for mapping in libraries:
        backend = LIBRARIES[os.path.basename(mapping.path)]
        try:
            library = Library(memory, mapping)
            found.torch = found.torch or torch_version(memory.pid, mapping)
            layouts = layouts_for(library.machine, found.torch)
            if not layouts:
                raise CannotRead(f"no layout of torch's recorder is known for {library.machine}")
            _find_in(library, backend, layouts, found)
        except CannotRead as error:
            found.reasons.setdefault(backend, error.reason)
    return found


def layouts_for(machine: str, torch: str) -> list[Layout]:
    """Those of this release first, then the newest: a release that is not known may have the layout of another."""
    known = [each for each in LAYOUTS if each.machine == machine]
    return sorted(known, key=lambda each: not (torch and each.is_of(release_of(torch))))


def _find_in(library: Library, backend: str, layouts: Sequence[Layout], found: FoundRecorders) -> None:
    candidates = list(_exported(library, backend))
    recorder, unknown = _first_proven(library.memory, candidates, layouts)
    registry = dict(_registered(library, candidates, layouts)) if backend == "gloo" else {}
    if recorder is None and (unknown or not candidates):
        named = library.local((*_LOCALS[backend], *((REGISTRY,) if backend == "gloo" else ())))
        exact = [named[name] for name in _LOCALS[backend] if name in named]
        if exact:  # the code also loads what is no recorder: the symbol says which it is
            recorder, unknown = _first_proven(library.memory, exact, layouts)
        if not registry and REGISTRY in named:
            registry = dict(_registered(library, [named[REGISTRY]], layouts))
        if not candidates and not named:
            raise CannotRead(f"{os.path.basename(library.mapping.path)} names no recorder: no torch of 2.7 or newer?")
    for name, each in registry.items():
        if recorder is None or each.address != recorder.address:
            found.recorders.setdefault(name, each)
    if recorder is not None:
        found.recorders.setdefault(backend, recorder)
    elif unknown:
        raise CannotRead(
            f"its recorder has none of the layouts that are known (torch {found.torch or 'of no known release'})"
        )


def _exported(library: Library, backend: str) -> Iterator[int]:
    for name in _EXPORTS[backend]:
        function = library.export(name)
        if function:
            yield from library.loaded_by(function, _CODE_BYTES)


def _first_proven(
    memory: ProcessMemory, pointers: Sequence[int], layouts: Sequence[Layout]
) -> tuple[RecorderMemory | None, bool]:
    """The first of the pointers that leads to a recorder; and whether any leads to what is none that is known."""
    unknown = False
    for pointer in dict.fromkeys(pointers):
        try:
            address = memory.word(pointer)
        except Torn:
            continue
        if address == 0:
            continue
        recorder = proven(memory, address, layouts)
        if recorder is not None:
            return recorder, False
        unknown = True
    return None, unknown


def proven(memory: ProcessMemory, address: int, layouts: Sequence[Layout]) -> RecorderMemory | None:
    """The recorder at an address by the first layout by which it hangs together."""
    for layout in layouts:
        recorder = RecorderMemory(memory, layout, address)
        for _ in range(3):
            try:
                recorder.header()
                recorder.statuses()
                recorder.groups()
            except Torn:
                continue  # it may have changed that very moment
            return recorder
    return None


def _registered(
    library: Library, places: Sequence[int], layouts: Sequence[Layout]
) -> Iterator[tuple[str, RecorderMemory]]:
    """What the registry holds: a table from names to recorders, at one of these places."""
    memory = library.memory
    for place in places:
        try:
            nodes = list(containers.hash_nodes(memory, place, _MOST_BACKENDS))
            named = [(containers.string(memory, node), memory.word(node + containers.STRING)) for node in nodes]
        except Torn:
            continue
        if not named or not all(_BACKEND.fullmatch(name) for name, _ in named):
            continue
        for name, address in named:
            recorder = proven(memory, address, layouts)
            if recorder is not None:
                yield name, recorder
        return


def torch_version(pid: int, mapping: Mapping) -> str:
    """What torch/version.py beside the library says; empty where it cannot be read."""
    folder = os.path.dirname(os.path.dirname(mapping.path.removesuffix(" (deleted)")))
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(f"/proc/{pid}/root{folder}/version.py", flags)
        try:
            text = os.read(handle, _MOST_VERSION).decode(errors="replace")
        finally:
            os.close(handle)
    except OSError:
        return ""
    match = re.search(r"__version__ = '(\d{1,3}\.\d{1,3}\.\w{1,40}(?:\+[\w.]{1,40})?)'", text)
    return match[1] if match else ""
