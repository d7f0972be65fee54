"""Containers of libstdc++ in the memory of a process: what only looks like one is none."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator

import pytest

from hangscope.sources.cannot_read import Torn
from hangscope.sources.flight_recorder import containers
from hangscope.sources.process_memory import ProcessMemory


@pytest.fixture
def memory() -> Iterator[ProcessMemory]:
    """This process, read as another one."""
    opened = ProcessMemory(os.getpid(), 10.0)
    yield opened
    opened.close()


def test_zeros_are_no_empty_map(memory: ProcessMemory) -> None:
    """On an H200 a pointer to zeros was taken for NCCL's recorder, which had recorded nothing then."""
    held = ctypes.create_string_buffer(64)
    with pytest.raises(Torn):
        containers.map_values(memory, ctypes.addressof(held))


def test_an_empty_map_points_to_itself(memory: ProcessMemory) -> None:
    """As std::map leaves it: no root, and its first and last nodes are its own head."""
    held = ctypes.create_string_buffer(64)
    here = ctypes.addressof(held)
    held.raw = struct.pack("<8Q", 0, 0, 0, here + 8, here + 8, 0, 0, 0)
    assert containers.map_values(memory, here) == []
