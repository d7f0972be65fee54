"""DeepEP's timeouts: who waits for whom."""

from __future__ import annotations

import pytest

from hangscope.reader.logs.deepep_lines import wait_of


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("dispatch NVL receiver timeout, channel: 5, RDMA: 1, nvl: 0, src RDMA: 1, src nvl: 7, start: 0", (8, 15)),
        ("dispatch forwarder timeout (RDMA meta), channel: 2, RDMA: 0, nvl: 7, src RDMA lane: 1, dst NVL: 3", (7, 15)),
        ("dispatch RDMA sender timeout, channel: 2, RDMA: 0, nvl: 3, dst RDMA lane: 2, tail: 9", (3, 19)),
        ("combine NVL sender timeout, channel: 0, RDMA: 1, nvl: 2, dst NVL: 5, head: 1", (10, 13)),
    ],
)
def test_both_ends_are_read(text: str, wait: tuple[int, int]) -> None:
    """The rank is the RDMA rank times eight and the NVLink rank; over RDMA the peer has the same NVLink rank."""
    assert wait_of(f"(Worker pid=7) DeepEP {text}") == wait


@pytest.mark.parametrize(
    "text",
    [
        "DeepEP error: timeout (dispatch CPU)",
        "DeepEP timeout for dispatch receivers, rank 3, responsible_channel = 2, tokens remained: 9",
        "DeepEP dispatch NVL receiver timeout, channel: 5, RDMA: 1, nvl: 0, src RDMA: 1, src nvl: 0",
        "DeepEP dispatch NVL receiver timeout, channel: 5, RDMA: 999999, nvl: 0, src RDMA: 999999, src nvl: 7",
    ],
)
def test_a_line_that_does_not_name_two_ranks_is_no_wait(text: str) -> None:
    """Neither is one that names the same rank twice, or a rank that cannot be."""
    assert wait_of(text) is None
