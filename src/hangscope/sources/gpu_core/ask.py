"""The GPUs' own word: a core of all ranks of this node at once, of which the kernels that run are kept.

A process that is asked loses its CUDA context. So this is the last thing that is done to a job which is ended anyway;
what its ranks write afterwards is our doing, so that how far their files were is kept with the answer. The launcher is
held meanwhile: it would end the other ranks when the first one fails. A core has a hundred megabytes and more, is read
here, and deleted whatever comes of it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hangscope.incident import manifest
from hangscope.incident.layout import GPUS_ASKED_FILE, GPUS_ASKED_SCHEMA
from hangscope.incident.node_dir import NodeDir
from hangscope.incident.written_before import GROWING
from hangscope.processes import hold_launcher, linux_process, target_rights
from hangscope.safeio.held import status_of
from hangscope.safeio.pipes import NOBODY_LISTENS, open_pipe
from hangscope.safeio.safe_files import Patience, Refused, listing, open_file, remove_file
from hangscope.sources.gpu_core import core_file as gpu_core
from hangscope.sources.gpu_core import settings as gpu_core_settings
from hangscope.sources.ranks import EndingRank

CORES_S = 15.0
"""From the byte to the last core: up to 5 s were seen on an H200 that four processes share."""
STILL_S = 0.25
"""A core that is whole and has not grown for so long is all there; it grows for some 40 ms."""
CUT_S = 3.0
"""A core that is not whole and has not grown for so long stays cut off."""
LOOK_S = 0.03
ALL_S = CORES_S + 10.0
"""With everything before and after: a file system may hang."""
MOST_RANKS = 64
"""Of one node."""
ROOM_BYTES = 160 << 20
"""So much room for each core, or none is asked for: with NCCL loaded they have 109 to 124 MB."""
MOST_CORE_BYTES = 2 << 30
_MOST_FILES = 4096


@dataclass(frozen=True, slots=True)
class CoresTaken:
    """When the GPUs of this node were asked, of which ranks a core was read, and how large each file was just before:
    what the job wrote after that is our doing."""

    asked_at: str
    ranks: tuple[int, ...]
    files: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {"asked_at": self.asked_at, "ranks": list(self.ranks), "files": self.files}


@dataclass(slots=True)
class _Asked:
    """One rank that can be asked, and where its core will be."""

    rank: EndingRank
    pipe: Path
    core: Path
    timed: bool
    before: frozenset[Path]
    handle: int = -1
    size: int = -1
    since: float = 0.0
    found: Path | None = None

    @property
    def number(self) -> int:
        return self.rank.number


def can_be_asked(ranks: Sequence[EndingRank]) -> bool:
    """Whether any of these ranks was started so that its GPU can be asked."""
    return any(not gpu_core_settings.why_not(_environment(rank)) for rank in ranks if not rank.ended)


def take(node_dir: NodeDir, ranks: Sequence[EndingRank], launcher: int | None) -> CoresTaken | None:
    """Ask the GPUs of all these ranks, and keep which kernels they run in gpu/rank_<r>.json; None where none was asked.

    Whoever cannot be asked, or does not answer, is a gap. `launcher` is what was started, at or above the ranks.
    """
    work = _Work(node_dir, [rank for rank in ranks if not rank.ended][:MOST_RANKS], launcher)
    try:
        Patience(ALL_S).ask("GPU cores", work.run)
    except Refused as late:
        node_dir.gap("GPU cores", str(late.strerror))
    return work.taken()


@dataclass(slots=True)
class _Work:
    node_dir: NodeDir
    ranks: Sequence[EndingRank]
    launcher: int | None
    asked_at: str = ""
    read: list[int] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)

    def taken(self) -> CoresTaken | None:
        return CoresTaken(self.asked_at, tuple(sorted(self.read)), self.files) if self.asked_at else None

    def run(self) -> None:
        asked = [one for rank in self.ranks if (one := self._prepared(rank)) is not None]
        if not asked or not self._has_room(asked):
            return
        pids = {rank.process.pid for rank in self.ranks}
        above = hold_launcher.launchers(pids, self.launcher) if self.launcher is not None else []
        with hold_launcher.held(above, CORES_S + 5.0) as held:
            if above and not held:
                self.node_dir.gap("launcher", "it could not be held while the GPU cores were taken")
            try:
                listening = self._opened(asked)
                if listening:
                    self._ask(listening)
                    self._collect(listening)
            finally:
                for one in asked:
                    self._clear(one)

    # ---- asking ------------------------------------------------------------------------------------------------------

    def _gap(self, rank: EndingRank, why: str) -> None:
        self.node_dir.gap(f"GPU core of rank {rank.number}", why, rank.number)

    def _prepared(self, rank: EndingRank) -> _Asked | None:
        environ = _environment(rank)
        why = gpu_core_settings.why_not(environ)
        if not why and rank.rights.foreign:
            why = "it belongs to another user, or lives in a container: ask as that user, in there"
        if why:
            self._gap(rank, why)
            return None
        pid = rank.process.pid
        try:
            here = Path(os.readlink(f"/proc/{pid}/cwd"))
        except OSError:
            here = Path("/nonexistent")
        pipe = gpu_core_settings.pipe_of(environ, pid, platform.node(), here)
        core, timed = gpu_core_settings.core_of(environ, pid, platform.node(), here)
        before = frozenset(_matching(core, timed))
        if before and not timed:
            self._gap(rank, f"there is already a file {core}")
            return None
        return _Asked(rank, pipe, core, timed, before)

    def _has_room(self, asked: Sequence[_Asked]) -> bool:
        """Whether all cores have room where they go. What is half written tells nothing, and fills somebody's disk."""
        folders: dict[Path, list[_Asked]] = {}
        for one in asked:
            folders.setdefault(one.core.parent, []).append(one)
        whole = True
        for folder, theirs in folders.items():
            try:
                state = os.statvfs(folder)
                free = state.f_bavail * state.f_frsize
                why = f"{folder} has {free >> 20} MiB left, and {len(theirs)} cores may need {ROOM_BYTES >> 20} each"
                enough = free >= len(theirs) * ROOM_BYTES
            except OSError as error:
                why = f"{folder}: {error.strerror}"
                enough = False
            if not enough:
                whole = False
                for one in theirs:
                    self._gap(one.rank, why)
        return whole

    def _opened(self, asked: Sequence[_Asked]) -> list[_Asked]:
        """Those that listen. A process makes its pipe with its CUDA context."""
        listening = []
        for one in asked:
            owner = target_rights.owner_of(one.rank.process.pid)
            try:
                one.handle = open_pipe(one.pipe, os.geteuid() if owner is None else owner)
                listening.append(one)
            except FileNotFoundError:
                self._gap(one.rank, f"there is no {one.pipe}: the process has no CUDA context")
            except Refused as refused:
                gone = refused.strerror == NOBODY_LISTENS
                why = "its CUDA context is gone" if gone else "not used"
                self._gap(one.rank, f"{one.pipe}: {refused.strerror}: {why}")
            except OSError as error:
                self._gap(one.rank, f"{one.pipe}: {error.strerror}")
        return listening

    def _ask(self, listening: list[_Asked]) -> None:
        """A byte to each, as near to each other as can be: who is asked late may have lost its peers."""
        self.files = _sizes(self.node_dir)
        self.asked_at = manifest.now()
        self._note_asked()
        for one in list(listening):
            try:
                os.write(one.handle, b"1")
            except OSError as error:
                self._gap(one.rank, f"{one.pipe}: {error.strerror}")
                listening.remove(one)

    def _note_asked(self) -> None:
        """Before the answers come, too: whoever else looks at the job has to know what ends it."""
        taken = self.taken()
        if taken is not None:
            self.node_dir.write_json(GPUS_ASKED_FILE, {"schema": GPUS_ASKED_SCHEMA, "gpu_cores": taken.to_json()})

    # ---- what comes --------------------------------------------------------------------------------------------------

    def _collect(self, asked: list[_Asked]) -> None:
        until = time.monotonic() + CORES_S
        waiting = list(asked)
        while waiting and time.monotonic() < until:
            time.sleep(LOOK_S)
            waiting = [one for one in waiting if not self._is_done(one)]
        for one in waiting:
            self._gap(one.rank, self._why_none(one))
        self._note_asked()

    def _why_none(self, one: _Asked) -> str:
        if one.found is not None:
            return f"its core was not whole within {CORES_S:g} s"
        ended = "; its process has ended" if one.rank.handle.ended() else ""
        shared = " (several processes on one GPU may get none)"
        return f"no core came within {CORES_S:g} s{ended}{shared}"

    def _is_done(self, one: _Asked) -> bool:
        """Whether nothing more is to be expected of this one: its core was read, or cannot be."""
        now = time.monotonic()
        try:
            size = self._size(one)
            if size is None:
                return False
            if size > MOST_CORE_BYTES:
                raise gpu_core.Damaged(f"its core has more than {MOST_CORE_BYTES >> 20} MiB")
            if size != one.size:
                one.size = size
                one.since = now
                return False
            if now - one.since < STILL_S:
                return False
            self._keep(one, self._read(one))
            self._remove(one)
        except gpu_core.Damaged as error:
            if now - one.since < CUT_S and one.size <= MOST_CORE_BYTES:
                return False  # it may be written with pauses
            self._gap(one.rank, str(error))
            self._remove(one)
        except OSError as error:
            self._gap(one.rank, f"{one.found or one.core}: {error.strerror}")
        return True

    def _size(self, one: _Asked) -> int | None:
        """How large the core is by now; None where there is none."""
        if one.found is None:
            new = [path for path in _matching(one.core, one.timed) if path not in one.before]
            one.found = new[0] if new else None
        if one.found is None:
            return None
        return status_of(one.found, follow=False).st_size

    def _read(self, one: _Asked) -> gpu_core.GpuCore:
        assert one.found is not None
        with open_file(one.found, follow=False) as stream:
            found = os.fstat(stream.fileno())
            owner = target_rights.owner_of(one.rank.process.pid)
            if found.st_uid not in (os.geteuid(), owner):
                raise Refused(f"belongs to another user (user {found.st_uid})", one.found)
            return gpu_core.read(functools.partial(os.pread, stream.fileno()), found.st_size)

    def _keep(self, one: _Asked, core: gpu_core.GpuCore) -> None:
        about = {"rank": one.number, "pid": one.rank.process.pid, "node": self.node_dir.directory.name}
        table = gpu_core.table(core, **about, asked_at=self.asked_at, bytes=one.size)
        if self.node_dir.write_json(f"gpu/rank_{one.number}.json", table, rank=one.number):
            self.read.append(one.number)
            self.node_dir.filled(f"GPU core of rank {one.number}", one.number)

    # ---- leaving nothing ---------------------------------------------------------------------------------------------

    def _remove(self, one: _Asked) -> None:
        if one.found is not None:
            with contextlib.suppress(OSError):
                remove_file(one.found)

    def _clear(self, one: _Asked) -> None:
        """Close the pipe, and delete what came, whether it was read or not."""
        if one.handle >= 0:
            os.close(one.handle)
            one.handle = -1
        for path in _matching(one.core, one.timed):
            if path not in one.before:
                with contextlib.suppress(OSError):
                    remove_file(path)


def _environment(rank: EndingRank) -> dict[str, str]:
    environ = linux_process.environment(rank.process.pid)
    return {} if rank.handle.ended() else environ


def _matching(core: Path, timed: bool) -> Iterator[Path]:
    """The files that may be this core. Where the name holds the time, `*` stands for it."""
    if timed:
        pattern = re.compile(".*".join(re.escape(part) for part in core.name.split("*")))
        with contextlib.suppress(OSError):
            yield from [core.parent / each.name for each in listing(core.parent) if pattern.fullmatch(each.name)]
    elif os.path.lexists(core):
        yield core


def _sizes(node_dir: NodeDir) -> dict[str, int]:
    """How large the files are into which the job still writes."""
    found: dict[str, int] = {}
    for folder in GROWING:
        place = node_dir.directory / folder
        with contextlib.suppress(OSError):
            for each in listing(place)[:_MOST_FILES]:
                if each.is_file and not each.name.startswith("."):
                    found[f"{folder}/{each.name}"] = status_of(place / each.name, follow=False).st_size
    return found
