"""Counters of the fabric's ports: bad cables count, congestion does not."""

from __future__ import annotations

from hangscope.model import Failure
from hangscope.reader.logs.fabric_counters import FabricCounters

IBQUERYERRORS = """
Errors for "gpu-n07 mlx5_0"
   GUID 0xb8cef603004471c2 port 1: [VL15Dropped == 14] [PortXmitWait == 4294967295]
Errors for 0xb8cef603007d13e4 "MF0;ibsw1:MSB7800/U1"
   GUID 0xb8cef603007d13e4 port ALL: [LinkErrorRecoveryCounter == 15] [LinkDownedCounter == 21]
   GUID 0xb8cef603007d13e4 port 1: [LinkDownedCounter == 8] [PortXmitWait == 4294967295]
   GUID 0xb8cef603007d13e4 port 5: [SymbolErrorCounter == 65535] [LinkDownedCounter == 2]
"""
LINK_DOWNED = """
Errors for 0x1 "sw2"
   GUID 0x1 port 3: [LinkDownedCounter == 25]
"""
PERFQUERY = """
# Port counters: Lid 12 port 5 (CapMask: 0x5A00)
PortSelect:......................5
SymbolErrorCounter:..............120
LinkDownedCounter:...............0
PortXmitWait:....................99
"""
CONGESTION = """
Errors for "gpu-n07 mlx5_0"
   GUID 0xb8cef603004471c2 port 1: [PortXmitDiscards == 14] [PortXmitWait == 4294967295]
"""


def failures(text: str) -> list[Failure]:
    found = FabricCounters("ib.txt")
    for number, line in enumerate(text.strip("\n").split("\n"), 1):
        found.feed(number, line)
    return found.failures


def test_errors_of_the_signal_come_before_links_that_went_down() -> None:
    """A host that was started again takes its link down too; the others are shown beside."""
    (failure,) = failures(IBQUERYERRORS)
    assert failure.detail == "port 5 of MF0;ibsw1:MSB7800/U1: SymbolErrorCounter 65535, LinkDownedCounter 2"
    assert failure.source.line == 6 and [source.line for source in failure.beside] == [5]


def test_a_link_that_went_down_is_named_where_there_is_nothing_worse() -> None:
    """With its port and how often."""
    assert [failure.detail for failure in failures(LINK_DOWNED)] == ["port 3 of sw2: LinkDownedCounter 25"]


def test_perfquery_is_read_too() -> None:
    """Its rows are of the port in its head."""
    assert [failure.detail for failure in failures(PERFQUERY)] == ["port 5 of Lid 12: SymbolErrorCounter 120"]


def test_congestion_is_no_failure() -> None:
    """Waits and discards say that the fabric is busy."""
    assert failures(CONGESTION) == []
