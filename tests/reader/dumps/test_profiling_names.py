"""What a profiling name says, and how many bytes a tensor has."""

from __future__ import annotations

import pytest

from hangscope.model import Kind
from hangscope.model.profiling_names import parse, parse_version, size_bytes


@pytest.mark.parametrize(
    ("text", "library", "operation", "kind", "own", "peer"),
    [
        ("nccl:all_reduce", "nccl", "all_reduce", Kind.COLLECTIVE, -1, -1),
        ("nccl:all_reduce_barrier", "nccl", "all_reduce_barrier", Kind.COLLECTIVE, -1, -1),
        ("gloo:barrier", "gloo", "barrier", Kind.COLLECTIVE, -1, -1),
        ("nccl:send 0->1", "nccl", "send", Kind.SEND, 0, 1),
        ("xccl:recv 12<-3", "xccl", "recv", Kind.RECV, 12, 3),
        ("nccl2:recv 1<-?", "nccl2", "recv", Kind.RECV, 1, -1),
        ("ncclx:send", "ncclx", "send", Kind.SEND, -1, -1),
        ("hccl:something_new", "hccl", "something_new", Kind.COLLECTIVE, -1, -1),
        ("no library at all", "", "no library at all", Kind.COLLECTIVE, -1, -1),
        ("", "", "", Kind.COLLECTIVE, -1, -1),
    ],
)
def test_names_are_taken_apart(text: str, library: str, operation: str, kind: Kind, own: int, peer: int) -> None:
    """Library, operation and the two sides of a transfer; what is unknown keeps its name."""
    found = parse(text)
    assert (found.library, found.operation, found.kind, found.own, found.peer) == (library, operation, kind, own, peer)


@pytest.mark.parametrize(
    ("shapes", "dtypes", "size"),
    [
        (((8, 4),), ("Float",), 128),
        (((),), ("Double",), 8),
        (((3,), (5, 2)), ("BFloat16", "Long"), 86),
        (((16,),), ("Float8_e4m3fn",), 16),
        (((16,),), ("ComplexDouble",), 256),
        (((0, 9),), ("Half",), 0),
        ((), (), 0),
        (((4,),), ("Quaternion",), -1),
        (((4,),), (), -1),
        (((-1,),), ("Float",), -1),
        (((1 << 40, 1 << 40),), ("Float",), -1),
    ],
)
def test_bytes_follow_from_shapes_and_types(
    shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...], size: int
) -> None:
    """Sums over all tensors; unknown types, missing types and impossible shapes are unknown and not zero."""
    assert size_bytes(shapes, dtypes) == size


def test_versions_compare_as_numbers() -> None:
    """2.10 comes after 2.9, which as text it would not."""
    assert parse_version("2.10") > parse_version("2.9") > parse_version("1.4") > parse_version("")
