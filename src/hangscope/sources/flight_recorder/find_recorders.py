"""Where in a process the flight recorders are, by what its libraries export and by their tables of symbols.

The functions by which torch dumps a recorder load the pointer to it: their code is in memory, in stripped builds too.
Where an address came from does not matter, because what lies there has to prove itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
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
_RELEASE = re.compile(r"\d+\.\d+\.\d+(?:\.post\d+)?(?:\+\w+)?")
_CODE_BYTES = 1024
_CALLED_BYTES = 256
_MOST_CALLED = 256
_NOT_FOUND = "no recorder was found in it: it has recorded nothing so far, or its build of torch is not known"
_BACKEND = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MOST_BACKENDS = 64
_MOST_VERSION = 16 << 10


@dataclass(frozen=True, slots=True)
class Place:
    """Where a library keeps a backend's recorder, or the table of several."""

    backend: str
    library: Library
    layouts: tuple[Layout, ...]
    pointers: tuple[int, ...]
    """What leads to the recorder: where the library names it, that alone, else all that its code loads."""
    registries: tuple[int, ...]


@dataclass(slots=True)
class FoundRecorders:
    """The recorders of a process, by their backends' names, and why some are not readable."""

    recorders: dict[str, RecorderMemory]
    reasons: dict[str, str]
    torch: str
    places: list[Place]
    """Of all its libraries: a recorder may be made later than another one."""


def find(memory: ProcessMemory, files: Sequence[Mapping]) -> FoundRecorders:
    """Those that exist by now and are proven. Raises CannotRead where no torch is in the process."""
    found = FoundRecorders({}, {}, "", [])
    libraries = [each for each in files if os.path.basename(each.path) in LIBRARIES]
    if not libraries:
        raise CannotRead(NO_TORCH)
    for mapping in libraries:
        backend = LIBRARIES[os.path.basename(mapping.path)]
        try:
            library = Library(memory, mapping)
            found.torch = found.torch or torch_version(memory.pid, mapping)
            layouts = layouts_for(library.machine, found.torch)
            if not layouts:
                raise CannotRead(f"no layout of torch's recorder is known for {library.machine}")
            _find_in(library, backend, tuple(layouts), found)
        except CannotRead as error:
            found.reasons.setdefault(backend, error.reason)
    return found


def find_later(found: FoundRecorders) -> None:
    """Adds the recorders that were made since."""
    for place in found.places:
        if place.backend not in found.recorders:
            _take(found, place, _first_proven(place)[0])
        elif place.registries:
            _take(found, place, None)


def layouts_for(machine: str, torch: str) -> list[Layout]:
    """Those of this release alone: older ones have less to prove. Where the table does not name it, or it is a build of
    its own (2.12.0a0+git), all: those of its number first, then the newest."""
    known = [each for each in LAYOUTS if each.machine == machine]
    own = [each for each in known if torch and each.is_of(release_of(torch))]
    if own and _RELEASE.fullmatch(torch):
        return own
    return sorted(known, key=lambda each: each not in own)


def _find_in(library: Library, backend: str, layouts: tuple[Layout, ...], found: FoundRecorders) -> None:
    functions = [each for each in map(library.export, _EXPORTS[backend]) if each]
    loaded = _loaded_by(library, functions, _CODE_BYTES)
    recorder, _ = _first_proven(Place(backend, library, layouts, loaded, ()))
    if recorder is None:  # libtorch_cuda's functions call the one that loads the pointer
        called = [each for function in functions for each in library.called_by(function, _CODE_BYTES)]
        loaded += _loaded_by(library, called[:_MOST_CALLED], _CALLED_BYTES)
        recorder, _ = _first_proven(Place(backend, library, layouts, loaded, ()))
    registries = loaded if backend == "gloo" else ()
    if recorder is not None:
        place = Place(backend, library, layouts, (), registries)
        found.places.append(place)
        return _take(found, place, recorder)
    named = library.local((*_LOCALS[backend], *((REGISTRY,) if backend == "gloo" else ())))
    exact = tuple(named[name] for name in _LOCALS[backend] if name in named)
    if REGISTRY in named:
        registries = (named[REGISTRY],)
    if not loaded and not named:
        raise CannotRead(f"{os.path.basename(library.mapping.path)} names no recorder: no torch of 2.7 or newer?")
    place = Place(backend, library, layouts, exact or loaded, registries)
    recorder, unknown = _first_proven(place)
    found.places.append(place)
    _take(found, place, recorder)
    if recorder is None and unknown and exact:  # the code also loads what is no recorder: a symbol says which it is
        raise CannotRead(
            f"its recorder has none of the layouts that are known (torch {found.torch or 'of no known release'})"
        )
    if recorder is None and not exact and not any(each in found.recorders for each in _of_registry(place)):
        found.reasons.setdefault(backend, _NOT_FOUND)
    return None


def _take(found: FoundRecorders, place: Place, recorder: RecorderMemory | None) -> None:
    registry = _of_registry(place)
    for name, each in registry.items():
        if recorder is None or each.address != recorder.address:
            found.recorders.setdefault(name, each)
    if recorder is not None:
        found.recorders.setdefault(place.backend, recorder)
    if recorder is not None or registry:
        found.reasons.pop(place.backend, None)


def _loaded_by(library: Library, functions: Sequence[int], size: int) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for function in functions:
        with suppress(Torn):  # what looks like a call may lead to no code
            found.update(dict.fromkeys(library.loaded_by(function, size)))
    return tuple(found)


def _first_proven(place: Place) -> tuple[RecorderMemory | None, bool]:
    """The first of the pointers that leads to a recorder; and whether any leads to what is none that is known."""
    memory = place.library.memory
    unknown = False
    for pointer in place.pointers:
        try:
            address = memory.word(pointer)
        except Torn:
            continue
        if address == 0:
            continue
        recorder = proven(memory, address, place.layouts)
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


def _of_registry(place: Place) -> dict[str, RecorderMemory]:
    """What the registry holds: a table from names to recorders, at one of these places."""
    memory = place.library.memory
    for registry in place.registries:
        try:
            nodes = list(containers.hash_nodes(memory, registry, _MOST_BACKENDS))
            named = [(containers.string(memory, node), memory.word(node + containers.STRING)) for node in nodes]
        except Torn:
            continue
        if not named or not all(_BACKEND.fullmatch(name) for name, _ in named):
            continue
        recorders = {name: proven(memory, address, place.layouts) for name, address in named}
        return {name: each for name, each in recorders.items() if each is not None}
    return {}


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
