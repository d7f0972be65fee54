"""What engines say of themselves; of DeepEP's timeouts, who waits for whom."""

from __future__ import annotations

import pytest

from hangscope.reader.logs.engine_lines import KV_TRANSFER, kv_peer, wait_of
from hangscope.reader.logs.quoted_words import is_quoted


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("dispatch NVL receiver timeout, channel: 5, RDMA: 1, nvl: 0, src RDMA: 1, src nvl: 7, start: 0", (8, 15)),
        ("dispatch forwarder timeout (RDMA meta), channel: 2, RDMA: 0, nvl: 7, src RDMA lane: 1, dst NVL: 3", (7, 15)),
        ("dispatch RDMA sender timeout, channel: 2, RDMA: 0, nvl: 3, dst RDMA lane: 2, tail: 9", (3, 19)),
        ("combine NVL sender timeout, channel: 0, RDMA: 1, nvl: 2, dst NVL: 5, head: 1", (10, 13)),
        ("combine forwarder (NVL check) timeout, channel: 1, RDMA: 1, nvl: 2, src NVL: 6, dst RDMA: 0", (10, 14)),
        ("dispatch forwarder timeout (NVL check), channel: 1, RDMA: 1, nvl: 2, dst NVL: 6, head: 1", (10, 14)),
        ("combine RDMA receiver timeout, channel: 1, RDMA: 0, nvl: 2, src RDMA: 1, tail: 0", (2, 10)),
        ("timeout for dispatch receive, rank 3, local_expert_idx 2, src_rank 5", (3, 5)),
        ("timeout for barrier, rank 3, thread 7, dst_rank 5", (3, 5)),
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


def test_every_pair_of_two_nodes_is_read() -> None:
    """Whichever two ranks: the waiting one and the awaited one come out as they were put in."""
    for waiter in range(16):
        for awaited in range(16):
            text = f"RDMA: {waiter // 8}, nvl: {waiter % 8}, src RDMA: {awaited // 8}, src nvl: {awaited % 8}, start: 0"
            found = wait_of(f"DeepEP dispatch NVL receiver timeout, channel: 1, {text}")
            assert found == ((waiter, awaited) if waiter != awaited else None)


@pytest.mark.parametrize(
    ("line", "quoted"),
    [
        ("bob: then you get `EngineDeadError` and", True),
        ('alice: docs say "EngineDeadError is fatal", right?', True),
        ("“EngineDeadError” means that", True),
        ('{"message": "EngineDeadError: see above"}', False),
        ("{'message': 'EngineDeadError: see above'}", False),
        ("msg='EngineDeadError: see above'", False),
        ("vllm.v1.engine.exceptions.EngineDeadError: see above", False),
        ("EngineDeadError", False),
    ],
)
def test_what_a_person_quotes_is_no_failure(line: str, quoted: bool) -> None:
    """Backticks and quotes in prose; a value of JSON, of a dict or of a field is the log's own."""
    assert is_quoted(line, line.index("EngineDeadError")) is quoted


@pytest.mark.parametrize(
    ("line", "peer"),
    [
        ("NIXL transfer failure: x | Context: {'remote_host': '10.0.11.136', 'remote_port': 5600}", "10.0.11.136"),
        ("KVTransferError(bootstrap_room=7): Failed to send kv chunk of 7 to node-3:33137", "node-3"),
        ("KVTransferError(bootstrap_room=7, remote_endpoint=10.1.1.2:8998): it might be dead", "10.1.1.2"),
        ("Lost connection with prefill instance (bootstrap_addr: [fd00::2]:8998)", "fd00::2"),
        ("nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT", None),
    ],
)
def test_the_other_end_of_a_transfer_is_read(line: str, peer: str | None) -> None:
    """NIXL's, SGLang's and Mooncake's words, where they name one."""
    match = KV_TRANSFER.search(line)
    assert match is not None and kv_peer(line, match) == peer
