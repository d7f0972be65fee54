"""NCCL's log lines in the wordings of 2.18 to 2.30: who is where, over which device, and what the warnings mean."""
# ruff: noqa: E501  (log lines are quoted whole)

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hangscope.model.times import LogTimes
from hangscope.model.values import comm_id
from hangscope.reader.join import resolve_nccl
from hangscope.reader.join.nccl_processes import merge_nccl
from hangscope.reader.join.who_is_who import identify
from hangscope.reader.load import load
from hangscope.reader.logs.log_file import TextFile
from hangscope.reader.logs.nccl_devices import split_devices
from hangscope.reader.logs.nccl_logs import NcclProcess, bus_id
from hangscope.reader.logs.nccl_warnings import address_host, read_warning

CASES = Path(__file__).parents[2] / "cases"


def read(text: str, file: str = "nccl.log") -> TextFile:
    found = TextFile(file)
    found.read(io.BytesIO(text.encode()), len(text))
    return found


def process(text: str) -> NcclProcess:
    (found,) = read(text).nccl.processes.values()
    return found


@pytest.mark.parametrize("host", ["...-51", "…51", "***", "<redacted host>", "gpu-3"])
def test_a_warning_is_read_behind_a_host_that_was_taken_away(host: str) -> None:
    """Whoever pastes a log in public shortens the names of machines."""
    found = read(f"{host}:73076:73185 [4] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n")
    assert [one.host for one in found.nccl.processes.values() if one.warnings] == [host]


P = "gpu-a017:81233:81300 [3] NCCL INFO "

INIT_LINES = {
    "2.18": "comm 0x55d0c8 rank 3 nranks 64 cudaDev 3 nvmlDev 3 busId 9b000 commId 0xABCDEF0123456789 - Init {}",
    "2.21": "ncclCommInitRank comm 0x55d0c8 rank 3 nranks 64 cudaDev 3 nvmlDev 3 busId 9b000 commId 0xabcdef0123456789 - Init {}",
    "2.23": "ncclCommInitRankConfig comm 0x55d0c8 rank 3 nranks 64 cudaDev 3 nvmlDev 3 busId 9b000 commId 0xabcdef0123456789 - Init {}",
    "scalable": "ncclCommInitRankScalable comm 0x55d0c8 rank 3 nranks 64 cudaDev 3 nvmlDev 3 busId 9b000 commId 0xabcdef0123456789 - Init {}",
    "2.29": "ncclCommInitRankConfig [Rank 3] comm 0x55d0c8 rank 3 nranks 64 cudaDev 3 nvmlDev 3 busId 9b000 commId 0xabcdef0123456789 - Init {}",
}


@pytest.mark.parametrize("version", INIT_LINES)
@pytest.mark.parametrize(
    "prefix", ["", "[2026-11-15T01:24:56.971] ", "[1,3]<stdout>:", "(RayWorker pid=7) ", "[rank3]: ", "3: "]
)
def test_init_lines_of_every_version_give_rank_size_gpu_and_communicator(version: str, prefix: str) -> None:
    """START opens a communicator, COMPLETE closes the same one, whatever stands in front of the line."""
    text = "".join(f"{prefix}{P}{INIT_LINES[version].format(phase)}\n" for phase in ("START", "COMPLETE"))
    found = process(text)
    assert (found.host, found.pid) == ("gpu-a017", 81233)
    (comm,) = found.comms
    assert (comm.rank, comm.size, comm.gpu, comm.cuda_device) == (3, 64, "0000:9b:00.0", 3)
    assert (comm.comm_id, comm.completed, comm.split) == ("0xabcdef0123456789", True, False)


def test_init_that_never_completes_is_visible() -> None:
    """START without COMPLETE is a communicator whose setup hangs."""
    (comm,) = process(f"{P}{INIT_LINES['2.23'].format('START')}\n").comms
    assert not comm.completed


SPLITS = {
    "2.21": "ncclCommSplit comm 0x66 rank 1 nranks 2 cudaDev 3 nvmlDev 3 busId 9b000 parent 0x55d0c8 color 7 key 1 commId 0x77 - Init START",
    "2.23": "ncclCommSplit comm 0x66 rank 1 nranks 2 cudaDev 3 nvmlDev 3 busId 9b000 parent 0x55d0c8 color 7 key 1 - Init START",
    "2.24": "ncclCommSplit comm 0x66 rank 1 nranks 2 cudaDev 3 nvmlDev 3 busId 9b000 parent 0x55d0c8 splitCount 1 color 7 key 1- Init START",
    "2.29": "ncclCommSplit [Rank 1] comm 0x66 rank 1 nranks 2 cudaDev 3 nvmlDev 3 busId 9b000 parent 0x55d0c8 childCount 1 color 7 key 1- Init START",
}


@pytest.mark.parametrize("version", SPLITS)
def test_split_communicator_is_known_by_parent_count_and_colour(version: str) -> None:
    """All members of a split agree on its identity, with or without a hash in the line; other colours differ."""
    parent = INIT_LINES["2.23"]
    ids = []
    for pointer, colour in (("0x55d0c8", 7), ("0x99aa", 7), ("0x99bb", 8)):
        text = f"{P}{parent.format('START').replace('0x55d0c8', pointer)}\n"
        text += f"{P}{SPLITS[version].replace('0x55d0c8', pointer).replace('color 7', f'color {colour}')}\n"
        comm = process(text).comms[1]
        assert (comm.rank, comm.size, comm.split, comm.color) == (1, 2, True, colour)
        ids.append(comm.comm_id)
    if version != "2.21":
        assert ids[0] == ids[1] != ids[2]
    else:
        assert ids == ["0x77"] * 3


def test_split_communicators_have_the_hash_that_ras_knows() -> None:
    """The hash that the log leaves out is computed, and equals what RAS printed of the same job."""
    job = load([CASES / "healthy8_mesh"])
    splits = [c for c in job.facts.communicators if c.split]
    assert {(c.size, c.completed) for c in splits} == {(2, True), (4, True)}
    answer = {r.comm_id: r for r in job.facts.ras}
    assert {c.comm_id for c in splits} == {r.comm_id for r in answer.values() if r.size < 8}
    for comm in splits:
        pids = {row.rank: (row.pid, row.global_rank) for row in answer[comm.comm_id].ranks}
        assert pids[comm.rank_in_comm] == (comm.pid, comm.rank)


@pytest.mark.parametrize(
    ("packed", "address"),
    [("9b000", "0000:9b:00.0"), ("f01000", "000f:01:00.0"), ("60", "0000:00:06.0"), ("1a0", "0000:00:1a.0")],
)
def test_packed_bus_id_becomes_a_pci_address(packed: str, address: str) -> None:
    """NCCL's packed number is the address that the kernel and nvidia-smi print."""
    assert bus_id(packed) == address


def test_communicator_hash_has_one_spelling() -> None:
    """The log's, RAS's JSON and RAS's text spelling of a hash are the same value."""
    assert comm_id("0x00AB12") == comm_id("ab12") == comm_id("0xab12") == "0xab12"


CHANNELS = {
    "Channel 00/0 : 3[3] -> 12[4] [send] via NET/IB/0/GDRDMA": (0, 3, 12, "send", "NET/IB/GDRDMA", "mlx5_0:1"),
    "Channel 00/0 : 3[3] -> 12[4] [send] via NET/IB/1(2)/GDRDMA": (0, 3, 12, "send", "NET/IB/GDRDMA", "mlx5_1:1"),
    "Channel 05/0 : 12[4] -> 3[3] [receive] via NET/IB/1/GDRDMA(PCI)/Shared": (
        5,
        12,
        3,
        "receive",
        "NET/IB/GDRDMA(PCI)/Shared",
        "mlx5_1:1",
    ),
    "Channel 01/0 : 3[3] -> 2[2] via P2P/CUMEM/read": (1, 3, 2, "send", "P2P/CUMEM/read", None),
    "Channel 01/0 : 3[3] -> 2[2] via P2P/indirect/2[2]": (1, 3, 2, "send", "P2P/indirect/2", None),
    "Channel 00 : 3[9b000] -> 4[a1000] via SHM/direct/direct": (0, 3, 4, "send", "SHM/direct/direct", None),
    "Channel 00/0 : 3[3] -> 12[4] [send] via NET/IBext_v8/1/GDRDMA": (
        0,
        3,
        12,
        "send",
        "NET/IBext_v8/GDRDMA",
        "mlx5_1:1",
    ),
    "Channel 00/0 : 3[3] -> 12[4] [send] via NET/IB/0/GDRDMA comm 0x55d0c8 nRanks 64": (
        0,
        3,
        12,
        "send",
        "NET/IB/GDRDMA",
        "mlx5_0:1",
    ),
}


@pytest.mark.parametrize("line", CHANNELS)
def test_channel_lines_name_both_ends_and_the_device(line: str) -> None:
    """Every wording of a connection gives channel, direction, transport, and the network device behind the index."""
    text = (
        f"{P}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n"
        f"{P}{INIT_LINES['2.23'].format('START')}\n{P}{line}\n"
    )
    found = process(text)
    (channel,) = found.comms[0].channels
    assert (
        channel.channel, channel.sender, channel.receiver, channel.side, channel.transport, found.device(channel)
    ) == CHANNELS[line]  # fmt: skip
    assert found.addresses == {"10.0.0.1"}


@pytest.mark.parametrize(
    ("listed", "devices"),
    [
        ("[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; ", [(0, "mlx5_0:1"), (1, "mlx5_1:1")]),
        (
            "[0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [1]={[0] mlx5_2:1/IB} [RO]; ",
            [(0, "mlx5_0:1+mlx5_1:1"), (1, "mlx5_2:1")],
        ),
        ("[0]mlx5_0:1:2:0/IB [1]mlx5_1:1:3:1/IB ", [(0, "mlx5_0:1"), (1, "mlx5_1:1")]),
        ("[0]rxe0:1/RoCE [RO]; ", [(0, "rxe0:1")]),
    ],
)
def test_device_list_in_every_wording(listed: str, devices: list[tuple[int, str]]) -> None:
    """Plain, fused and rail-aware lists of adapters give index and name with port."""
    found = [(index, "+".join(f"{part.name}:{part.port}" for part in parts)) for index, parts in split_devices(listed)]
    assert found == devices


def test_a_virtual_device_is_its_adapters_with_their_ports() -> None:
    """A fused device that is made later is found under its new index, and its ports in the list of adapters."""
    text = (
        f"{P}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
        f"{P}NET/IB : Made virtual device [8] name=mlx5_0+mlx5_1 speed=800000 ndevs=2\n"
        f"{P}{INIT_LINES['2.23'].format('START')}\n{P}Channel 00/0 : 3[3] -> 12[4] [send] via NET/IB/8/GDRDMA\n"
    )
    found = process(text)
    assert found.device(found.comms[0].channels[0]) == "mlx5_0:1+mlx5_1:1"


@pytest.mark.parametrize(
    ("listed", "name", "fused"),
    [
        ("[0]mlx4_0:1/IB [1]mlx4_0:2/IB", "mlx4_0+mlx4_0", "mlx4_0:1+mlx4_0:2"),
        ("[0]mlx4_0:1/IB [1]mlx4_0:2/IB [2]mlx5_1:1/IB", "mlx4_0+mlx5_1", "mlx4_0+mlx5_1:1"),
        ("[0]mlx5_7:1/IB", "mlx5_0+mlx5_1", "mlx5_0+mlx5_1"),
    ],
)
def test_a_port_that_nothing_says_is_not_made_up(listed: str, name: str, fused: str) -> None:
    """Both ports of one adapter can be fused; one of two is not known, nor that of an adapter that is not listed."""
    text = (
        f"{P}NET/IB : Using {listed} [RO]; OOB eth0:10.0.0.1<0>\n"
        f"{P}NET/IB : Made virtual device [9] name={name} speed=80000 ndevs=2\n"
        f"{P}{INIT_LINES['2.23'].format('START')}\n{P}Channel 00/0 : 3[3] -> 12[4] [send] via NET/IB/9/GDRDMA\n"
    )
    found = process(text)
    assert found.device(found.comms[0].channels[0]) == fused


QUEUE_PAIRS = {
    "NET/IB: NCCL Dev 1 IbDev 1 Port 1 qpn 1337 mtu 5 LID 117": (117, None),
    "NET/IB: NCCL Dev 1 IbDev 1 Port 1 qpn 1337 mtu 5 LID 117 subnet-prefix 254  FLID 0 fifoRkey=0x1 fifoLkey=0x2": (
        117,
        None,
    ),
    "NET/IB: NCCL MergedDev 9 IbDev 1 Port 1 qpn 8 mtu 3 GID 3 (0/605000AFFFF0000) fifoRkey=0x1 fifoLkey=0x2": (
        None,
        "::ffff:10.0.5.6",
    ),
    "NET/IB: IbDev 1 Port 1 qp_num 8 mtu 3 query_ece={supported=1} GID 3 (80FE/100000000000000)": (None, "fe80::1"),
}


@pytest.mark.parametrize("line", QUEUE_PAIRS)
def test_a_queue_pair_names_what_the_fabric_calls_the_port(line: str) -> None:
    """The LID, or the GID with the address in it, belongs to the port of NCCL's own index, in every wording."""
    text = (
        f"{P}NET/IB: [4] mlx5_1:uverbs4:1/RoCE provider=Mlx5 speed=400000 context=0x5 "
        "pciPath=/sys/devices/pci0000:37/0000:37:01.0/0000:3b:00.0 ar=0\n"
        f"{P}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n{P}{line}\n"
    )
    ports = {port.name: port for port in process(text).devices.ports}
    assert (ports["mlx5_1"].lid, ports["mlx5_1"].gid) == QUEUE_PAIRS[line]
    assert (ports["mlx5_1"].port, ports["mlx5_1"].layer, ports["mlx5_1"].pci) == (1, "RoCE", "0000:3b:00.0")
    assert (ports["mlx5_0"].layer, ports["mlx5_0"].lid) == ("IB", None)


def test_ring_and_trees_are_read() -> None:
    """Neighbours in ring and tree, with absent ones left out."""
    text = (
        f"{P}{INIT_LINES['2.23'].format('START')}\n{P}Ring 00 : 2 -> 3 -> 4\n{P}Ring 01 : 5 -> 3 -> 1\n"
        f"{P}Trees [0] 5/7/-1->3->1 [1] -1/-1/-1->3->2\n"
    )
    (comm,) = process(text).comms
    assert comm.rings == {0: (2, 4), 1: (5, 1)}
    assert comm.trees == {0: (1, (5, 7)), 1: (2, ())}


def test_late_channel_lines_go_to_the_communicator_they_fit() -> None:
    """Connections that are made on first use, on another thread, find the communicator with that neighbour."""

    def init(pointer: str, rank: int, size: int, ident: str, *rings: str) -> str:
        line = f"comm {pointer} rank {rank} nranks {size} cudaDev 3 nvmlDev 3 busId 9b000 commId {ident}"
        return "".join(f"{P}{row}\n" for row in (f"{line} - Init START", *rings, f"{line} - Init COMPLETE"))

    late = "gpu-a017:81233:99999 [3] NCCL INFO "
    text = (
        init("0x1", 3, 8, "0x11", "Ring 00 : 2 -> 3 -> 4")
        + init("0x2", 0, 2, "0x22", "Ring 00 : 1 -> 0 -> 1")
        + f"{late}Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0\n"
        + f"{late}Channel 00/0 : 3[3] -> 4[4] [send] via NET/Socket/0\n"
        + f"{late}Channel 00/0 : 2[2] -> 3[3] [receive] via NET/Socket/0\n"
    )
    world, pair = process(text).comms
    assert [(c.sender, c.receiver) for c in world.channels] == [(3, 4), (2, 3)]
    assert [(c.sender, c.receiver) for c in pair.channels] == [(0, 1)]


def test_equal_communicators_share_out_their_connections() -> None:
    """Two communicators of all ranks: the second set of the same connections belongs to the second one."""

    def init(pointer: str, ident: str) -> str:
        line = f"comm {pointer} rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId {ident}"
        return f"{P}{line} - Init START\n{P}Ring 00 : 1 -> 0 -> 1\n{P}{line} - Init COMPLETE\n"

    channel = f"{P}Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
    first, second = process(init("0x1", "0x11") + channel + init("0x2", "0x22") + channel).comms
    assert (len(first.channels), len(second.channels)) == (1, 1)
    assert first.channels[0].source.place == "line 4"


def test_version_is_read_with_and_without_a_prefix() -> None:
    """NCCL prints its version bare or behind its prefix."""
    bare, prefixed = read("NCCL version 2.27.5+cuda12.9\n"), read(f"{P}NCCL version 2.20.5+cuda12.4\n")
    assert (bare.nccl.nccl_version, bare.nccl.cuda_version) == ("2.27.5", "12.9")
    assert prefixed.nccl.nccl_version == "2.20.5"


# ---- warnings --------------------------------------------------------------------------------------------------------

COMPLETIONS = {
    "2.19": "NET/IB : Got completion from peer 10.1.2.3<41873> with error 12, opcode 0, len 0, vendor err 129 (Recv)",
    "2.19 RoCE": "NET/IB : Got completion from peer 10.1.2.3<41873> with error 12, opcode 1, len 32603, vendor err 129 (Send) localGid ::ffff:10.0.0.1 remoteGids::ffff:10.0.0.2",
    "2.20": "NET/IB : Got completion from peer 10.1.2.3<41873> with status=12 opcode=0 len=0 vendor err 129 (Recv)",
    "2.22": "NET/IB: Got completion from peer 10.1.2.3<41873> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_3",
    "2.28.7": "NET/IB: Got completion from peer 10.1.2.3<41873> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=16 vendor_err=129 req_type=Send hca mlx5_3",
    "2.29": "NET/IB: Got completion from peer 10.1.2.3<41873> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129  localGid fe80::1 remoteGids fe80::2 hca mlx5_3",
    "GIN": "NET/IB/GIN: Got completion from peer 10.1.2.3<41873> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 hca mlx5_3",
    "plugin": "NET/gIB : Got completion from peer 10.1.2.3<41873> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_3",
}


@pytest.mark.parametrize("version", COMPLETIONS)
@pytest.mark.parametrize("where", ["net_ib.cc:1295", "transport/net_ib/p2p.cc:692 (ncclIbTest)"])
def test_completion_error_names_status_peer_and_adapter(version: str, where: str) -> None:
    """The retry-exceeded line of every version gives status 12, the peer, and the adapter where the version says it."""
    text = f"\n[2026-11-15 01:23:34] gpu-a017:81233:81301 [3] {where} NCCL WARN {COMPLETIONS[version]}\n"
    (warning,) = process(text).warnings
    found = read_warning(warning.text)
    assert (found.kind, found.status, found.status_name) == ("completion_error", 12, "RETRY_EXC_ERR")
    assert found.peer_address == "10.1.2.3<41873>"
    assert found.hca == (None if version.startswith(("2.19", "2.20")) else "mlx5_3")
    assert warning.source.place == "line 2"
    assert warning.at_ns == 1_794_705_814_000_000_000


ASYNC = {
    "NET/IB : Got async event : port error": (None, None, False),
    "NET/IB : mlx5_0:1 Got async event : port error": ("mlx5_0", 1, False),
    "NET/IB : mlx5_0:1 Got async error event: port error": ("mlx5_0", 1, False),
    "NET/IB : mlx5_0:1 Got async fatal event: local catastrophic error": ("mlx5_0", 1, True),
    "NET/IB : mlx5_0:1 Got async fatal event on QP (0x7f): local work queue catastrophic error": ("mlx5_0", 1, True),
    "NET/IB : mlx5_2:2 Got non-fatal async event: port error(10)": ("mlx5_2", 2, False),
    "NET/IB : mlx5_0:1 Got async event : local catastrophic error": ("mlx5_0", 1, True),
}


@pytest.mark.parametrize("text", ASYNC)
def test_async_event_names_adapter_port_and_gravity(text: str) -> None:
    """A port event of every version names its port where the version does, and says whether it is fatal."""
    found = read_warning(text)
    assert (found.kind, found.hca, found.port, found.fatal) == ("async_event", *ASYNC[text])


KINDS = {
    "socketProgress: Connection closed by remote peer gpu-a018<43542>": ("connection_closed", "gpu-a018<43542>"),
    "socketProgress: Connection closed by remote peer 10.0.0.7<43542>": ("connection_closed", "10.0.0.7<43542>"),
    "socketProgressOpt: Call to recv from 10.0.0.7<52341> failed : Connection reset by peer": (
        "connection_error",
        "10.0.0.7<52341>",
    ),
    "ncclOsSocketProgressOpt: Call to recv from 10.0.0.7<52341> failed : Connection reset by peer": (
        "connection_error",
        "10.0.0.7<52341>",
    ),
    "socketStartConnect: exceeded retries (20000)": ("connect_failed", None),
    "socketPollConnect: connect to 10.0.0.7<52341> returned Connection refused, exceeded error retry count after 34 attempts": (
        "connect_failed",
        "10.0.0.7<52341>",
    ),
    "NET/Socket : peer 10.0.0.7<39144> message truncated : receiving 16384 bytes instead of 16. If you believe your socket network is in a healthy state, there may be a mismatch in collective sizes": (
        "size_desync",
        "10.0.0.7<39144>",
    ),
    "NET/IB : req 0/1 tag 7 peer 10.0.0.7<39144> posted incorrect receive info: size 16 addr 0x7f rkeys[0]=0": (
        "size_desync",
        None,
    ),
    "Cuda failure 'unspecified launch failure'": ("cuda_error", None),
    "Cuda failure 719 'unspecified launch failure'": ("cuda_error", None),
    "Bootstrap Root : mismatch in info from procs, nranks 4 : got 8": ("init_mismatch", None),
    "Bootstrap Root : rank 3 of 8 ranks has already checked in": ("init_mismatch", None),
    "Mismatched NCCL version detected : rank 3 2.27 local rank 0 2.28": ("init_mismatch", None),
    "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 18000": ("init_mismatch", None),
    "NET/IB: Got CQE with error (devIndex=0, req=0x1, comm=0x2 (send), wr_id=3, qp_num=4)": ("completion_error", None),
    "communicator encountered a fatal error (detected in ncclIbTest)": ("async_event", None),
    "NCCL_BUFFSIZE is too small": ("other", None),
}


@pytest.mark.parametrize("text", KINDS)
def test_warnings_are_told_apart(text: str) -> None:
    """A dead peer, a refused connection, sizes that differ, a GPU error and a wrong launch are different things."""
    found = read_warning(text)
    assert (found.kind, found.peer_address) == KINDS[text]


def test_failed_queue_pair_names_its_adapter_and_port() -> None:
    """A connection that cannot be made over InfiniBand names device and port from 2.24 on."""
    rich = read_warning(
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_4:1, curr state INIT, next state RTR, local GID index 3, local GID fe80::1, remote GID fe80::2"
    )
    assert (rich.kind, rich.hca, rich.port, rich.status, rich.status_name) == (
        "connect_failed",
        "mlx5_4",
        1,
        110,
        "Connection timed out",
    )
    plain = read_warning("Call to ibv_modify_qp failed with error Connection timed out errno 110")
    assert (plain.kind, plain.hca) == ("connect_failed", None)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.7<52341>", "10.0.0.7"),
        ("gpu-a018<1>", "gpu-a018"),
        ("[fe80::1]<12>", "fe80::1"),
        ("[10.0.0.3]:2345", "10.0.0.3"),
        ("localhost<60574>", None),
        ("127.0.0.1<60574>", None),
        (None, None),
    ],
)
def test_loopback_names_no_host(address: str | None, host: str | None) -> None:
    """An address is taken apart; a loopback is never a node."""
    assert address_host(address) == host


# ---- ranks of the job -----------------------------------------------------------------------------------------------


def two_nodes() -> list[TextFile]:
    """Four ranks on two hosts, world communicator and two pairs across the hosts; pids repeat on the hosts."""
    files = []
    for rank in range(4):
        host = f"gpu-a01{rank // 2}"
        ip, pid = f"10.0.0.{rank // 2 + 1}", 100 + rank % 2
        p = f"{host}:{pid}:{pid} [{rank % 2}] NCCL INFO "
        pair, other = rank % 2, 1 - rank // 2
        me = rank // 2
        files.append(
            read(
                f"{p}Bootstrap: Using eth0:{ip}<0>\n"
                f"{p}NET/IB : Using [0]mlx5_{rank % 2}:1/IB [RO]; OOB eth0:{ip}<0>\n"
                f"{p}comm 0x1 rank {rank} nranks 4 cudaDev {rank % 2} nvmlDev 0 busId 9b000 commId 0x11 - Init START\n"
                f"{p}comm 0x1 rank {rank} nranks 4 cudaDev {rank % 2} nvmlDev 0 busId 9b000 commId 0x11 - Init COMPLETE\n"
                f"{p}comm 0x2 rank {me} nranks 2 cudaDev {rank % 2} nvmlDev 0 busId 9b000 commId 0x2{pair} - Init START\n"
                f"{p}Channel 00/0 : {me}[0] -> {other}[0] [send] via NET/IB/0/GDRDMA\n"
                f"{p}Channel 00/0 : {other}[0] -> {me}[0] [receive] via NET/IB/0/GDRDMA\n"
                f"{p}comm 0x2 rank {me} nranks 2 cudaDev {rank % 2} nvmlDev 0 busId 9b000 commId 0x2{pair} - Init COMPLETE\n",
                f"log{rank}",
            )
        )
    return files


def test_subgroup_ranks_become_ranks_of_the_job() -> None:
    """The edge of a pair communicator is told in global ranks, with the adapter on the side that logged it."""
    texts = two_nodes()
    processes = merge_nccl(texts)
    who = identify(texts, processes, [], [], [], None, [], {})
    assert who.nodes == {0: "gpu-a010", 1: "gpu-a010", 2: "gpu-a011", 3: "gpu-a011"}
    comms = {(c.rank, c.comm_id): c for c in resolve_nccl.communicators(who, processes)}
    edges = comms[3, "0x21"].edges
    assert [(e.sender, e.receiver, e.nic, e.side) for e in edges] == [
        (3, 1, "mlx5_1:1", "send"),
        (1, 3, "mlx5_1:1", "receive"),
    ]


def test_peer_of_a_warning_is_found_by_address_and_neighbours() -> None:
    """An address gives the peer's node; the rank there is named where only one can be meant."""
    texts = two_nodes()
    warn = (
        "gpu-a010:101:101 [1] net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4711> with status=12 "
        "opcode=0 len=0 vendor err 129 (Send) hca mlx5_1\n"
    )
    texts.append(read(warn, "warnings"))
    processes = merge_nccl(texts)
    who = identify(texts, processes, [], [], [], None, [], {})
    comms = resolve_nccl.communicators(who, processes)
    (event,) = resolve_nccl.transport_events(who, processes, texts, comms, LogTimes([]))
    assert (event.rank, event.node, event.hca, event.peer_node, event.peer_rank) == (
        1,
        "gpu-a010",
        "mlx5_1",
        "gpu-a011",
        3,
    )


def test_subgroups_alone_do_not_pass_for_the_whole_job() -> None:
    """Where the group of all ranks never made a communicator, the largest ones are not mistaken for it."""
    texts = [
        read(
            f"h{n // 2}:{n}:{n} [0] NCCL INFO comm 0x1 rank {n % 2} nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x{n // 2 + 1} - Init START\n",
            f"f{n}",
        )
        for n in range(4)
    ]
    who = identify(texts, merge_nccl(texts), [], [], [], None, [], {})
    assert who.by_process == {}
    assert who.ranks == set()


@pytest.mark.parametrize("case", ["multi_pg", "p2p", "pg_order"])
def test_recorded_communicators_have_ranks_nodes_and_edges(case: str) -> None:
    """In the recorded cases every communicator's edges are told in global ranks, also those of pairs."""
    job = load([CASES / case])
    comms = job.facts.communicators
    assert all(c.rank is not None and c.node == job.nodes[c.rank] for c in comms)
    assert all(e.sender is not None and e.receiver is not None and e.nic == "lo" for c in comms for e in c.edges)
    members = {g.members for g in job.groups if g.members and len(g.members) == 2}
    for comm in comms:
        if comm.size == 2 and case == "multi_pg":
            ends = {r for e in comm.edges for r in (e.sender, e.receiver)}
            assert tuple(sorted(r for r in ends if r is not None)) in members
