"""Processes as NCCL's logs show them, and which of their communicators holds the whole job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hangscope.reader.logs.log_file import TextFile
from hangscope.reader.logs.nccl_logs import NcclProcess

Processes = Mapping[tuple[str, int], NcclProcess]
"""By host and pid."""


class WorldCommunicator(NamedTuple):
    """A communicator whose ranks are the job's ranks."""

    ident: str
    size: int


def merge_nccl(texts: Iterable[TextFile]) -> dict[tuple[str, int], NcclProcess]:
    """One entry a process, over all files that hold lines of it."""
    merged: dict[tuple[str, int], NcclProcess] = {}
    for text in texts:
        for key, process in sorted(text.nccl.processes.items()):
            known = merged.get(key)
            if known is None:
                merged[key] = process
                continue
            if not known.comms or not process.comms or process.comms[0].pointer != known.comms[0].pointer:
                known.comms.extend(process.comms)
            known.devices.update(process.devices)
            known.addresses |= process.addresses
            known.warnings.extend(process.warnings)
            known.tags |= process.tags
    return merged


def largest_communicators(processes: Processes) -> tuple[int, dict[str, set[tuple[str, int]]]]:
    """(the size of the largest communicator, each of that size → the processes that hold it)."""
    size = max((comm.size for process in processes.values() for comm in process.comms), default=0)
    holders: dict[str, set[tuple[str, int]]] = {}
    for key, process in processes.items():
        for comm in process.comms:
            if comm.size == size and comm.comm_id:
                holders.setdefault(comm.comm_id, set()).add(key)
    return size, holders


def world_communicator(processes: Processes, least: int) -> WorldCommunicator | None:
    """The first communicator that can hold every rank.

    None where the largest one is smaller than the job, or where two of that size have no process in common: then they
    are parts of a job whose all-rank group never made a communicator.
    """
    size, holders = largest_communicators(processes)
    if size == 0 or size < least:
        return None
    everyone = set().union(*holders.values())
    if len(everyone) > size:
        return None
    most = max(len(keys) for keys in holders.values())
    if most < len(everyone) and any(not (a & b) for a in holders.values() for b in holders.values()):
        return None
    made_first = Counter(
        next((comm.comm_id for comm in process.comms if comm.comm_id in holders and comm.size == size), None)
        for process in processes.values()
    )
    best = max(holders, key=lambda ident: (len(holders[ident]), made_first[ident], ident))
    return WorldCommunicator(best, size)
