"""From a stuck link to its ports: constructed InfiniBand cases, plain and misleading, and what decides them."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hangscope
from hangscope.diagnosis.hardware import xids
from hangscope.diagnosis.hardware.counter_meaning import COUNTERS, counter_text, over_limit
from hangscope.diagnosis.hardware.port_paths import Ports
from hangscope.model import CounterChange, KernelMessage, Process, Source
from hangscope.sources.net_counters import capture as sys_counters
from kits.constructed_fabric import FAULTY, NODES, RECEIVER, SENDER, Fabric, Moves
from kits.small_jobs import Builder, Op
from kits.verdict_words import OWN_WORD, sentences, slips

THERE, HERE_TOO, AWAY = ("gpu-worker-7", "mlx5_1"), ("gpu-worker-6", "mlx5_1"), ("gpu-worker-9", "mlx5_0")
ALIKE: Moves = {
    (node, device): {"port_xmit_wait": 50_000, "local_ack_timeout_err": 90 + number, "symbol_error": 40}
    for number, (node, device) in enumerate((node, device) for node in NODES for device in ("mlx5_0", "mlx5_1"))
}


def verdict(folder: Path, fabric: Fabric) -> hangscope.Diagnosis:
    found = hangscope.diagnose(hangscope.load([fabric.write(folder)]))
    assert not slips(found)
    assert not [text for text in sentences(found) if OWN_WORD.search(text)]
    return found


def said_why(found: hangscope.Diagnosis) -> str:
    return "\n".join(finding.text for finding in found.why)


def test_the_link_both_ports_and_the_counters_are_named(tmp_path: Path) -> None:
    """Rank 3 stuck in an all-reduce, the others at the barrier, one port's counters moving: all of it is named."""
    found = verdict(tmp_path, Fabric())
    assert (found.outcome, found.kind, found.confidence) == ("hang", "network", "high")
    assert [culprit.rank for culprit in found.culprits] == [RECEIVER]
    assert found.culprits[0].node == "gpu-worker-7"
    link = found.link
    assert link is not None and link.channel == 0
    assert (link.sender.rank, link.sender.node, link.sender.nic) == (SENDER, "gpu-worker-6", "mlx5_1:1")
    assert (link.receiver.rank, link.receiver.node, link.receiver.nic) == (RECEIVER, "gpu-worker-7", "mlx5_1:1")
    assert "mlx5_1:1 of gpu-worker-7 (LID 111): link_downed +2, symbol_error +1841" in link.evidence
    why = said_why(found)
    assert "port mlx5_1:1 of gpu-worker-6 (LID 101): no error counter rose" in why
    assert "link_downed +2 (the link went down" in why and "alarm at more than 120 an hour, exceeded" in why
    steps = "\n".join(found.next_steps)
    assert steps.index("receiving port mlx5_1:1 on gpu-worker-7: mlxlink -d mlx5_1 -p 1") < steps.index("sending port")
    assert "perfquery -x 111 1" in steps and "ibdiagnet -i mlx5_1" in steps and "switch ports of LID 101, 111" in steps
    assert found.victims and {victim.operation for victim in found.victims} == {"barrier #122"}


@pytest.mark.parametrize(
    "fabric",
    [
        pytest.param(Fabric(moved={HERE_TOO: dict(FAULTY)}), id="sender"),
        pytest.param(Fabric(moved={HERE_TOO: {"local_ack_timeout_err": 40}, THERE: dict(FAULTY)}), id="both"),
        pytest.param(Fabric(moved={**ALIKE, THERE: {**ALIKE[THERE], **FAULTY}}), id="beside-load"),
        pytest.param(Fabric(ring_lines=False), id="no-ring-lines"),
        pytest.param(Fabric(moved={}, down=THERE), id="down"),
        pytest.param(Fabric(trees=True), id="copied-trees"),
        pytest.param(Fabric(timed=False), id="no-timing"),
        pytest.param(Fabric(moved={THERE: {"symbol_error": -8000}}, before={"symbol_error": 9000}), id="reset"),
        pytest.param(Fabric(moved={**ALIKE}, boxes=True), id="boxes-under-load"),
        pytest.param(Fabric(moved={AWAY: dict(FAULTY)}, boxes=True), id="boxes-errors-elsewhere"),
        pytest.param(Fabric(moved={}, boxes=True, everyone_inside=True), id="boxes-everybody-inside"),
        pytest.param(Fabric(start=False, boxes=True, timed=False), id="boxes-no-start-no-timing"),
    ],
)
def test_the_link_is_named_for_sure(fabric: Fabric, tmp_path: Path) -> None:
    """Where only the link's own ports stand out, or both ends' black boxes show it, the link is named with its NICs."""
    found = verdict(tmp_path, fabric)
    assert found.link is not None and (found.kind, found.confidence) == ("network", "high")
    assert (found.link.sender.rank, found.link.receiver.rank) == (SENDER, RECEIVER)
    assert (found.link.sender.nic, found.link.receiver.nic) == ("mlx5_1:1", "mlx5_1:1")


@pytest.mark.parametrize(
    ("fabric", "words"),
    [
        pytest.param(Fabric(moved={AWAY: dict(FAULTY)}), "mlx5_0:1 of gpu-worker-9", id="another-node"),
        pytest.param(
            Fabric(moved={("gpu-worker-7", "mlx5_0"): dict(FAULTY)}), "which this link does not use", id="another-port"
        ),
        pytest.param(Fabric(moved=ALIKE), "no higher than elsewhere", id="load-everywhere"),
        pytest.param(Fabric(moved={}), "no error counter rose", id="nothing-moved"),
        pytest.param(Fabric(moved={THERE: {"symbol_error": 3}}), "that is low", id="a-few-bit-errors"),
        pytest.param(Fabric(start=False), "not read both at the start and at the stall", id="no-start"),
        pytest.param(Fabric(sampled=("gpu-worker-6",)), "not read both at the start and at the stall", id="one-end"),
        pytest.param(Fabric(logs=(0, 1, 2, 4, 5, 6, 7)), "no log says whether this link uses it", id="no-log-of-one"),
        pytest.param(Fabric(logs=(0, 1, 4, 5, 6, 7)), "no log says whether this link uses it", id="no-log-of-node"),
        pytest.param(
            Fabric(moved={THERE: {"symbol_error": -9000}}, before={"symbol_error": 9000}), "finished", id="reset-to-0"
        ),
        pytest.param(Fabric(moved={THERE: dict(FAULTY), AWAY: dict(FAULTY)}), "gpu-worker-9", id="here-and-elsewhere"),
    ],
)
def test_what_misleads_leaves_a_doubt(fabric: Fabric, words: str, tmp_path: Path) -> None:
    """Errors elsewhere or everywhere, and samples or logs that are missing: the link stays doubted, and it says why."""
    found = verdict(tmp_path, fabric)
    assert (found.kind, found.confidence) == ("network", "medium")
    assert [culprit.rank for culprit in found.culprits] == [RECEIVER]
    assert words in said_why(found)
    assert found.link is None or (found.link.sender.rank, found.link.receiver.rank) == (SENDER, RECEIVER)


def test_without_any_log_the_edge_is_not_determined(tmp_path: Path) -> None:
    """No ring and no channel: no link, and the port that stands out is shown with its node."""
    found = verdict(tmp_path, Fabric(logs=()))
    assert (found.kind, found.confidence, found.link) == ("network", "medium", None)
    assert "port mlx5_1:1 of gpu-worker-7" in said_why(found)


@pytest.mark.parametrize("fabric", [Fabric(layer="RoCE"), Fabric(layer="RoCE", trees=True)], ids=["sampled", "copied"])
def test_roce_ports_have_gids_and_other_tools(fabric: Fabric, tmp_path: Path) -> None:
    """Over RoCE a port is known by the address in its GID, and looked at with ethtool and rdma."""
    found = verdict(tmp_path, fabric)
    assert found.link is not None and found.confidence == "high"
    assert "mlx5_1:1 of gpu-worker-7 (GID ::ffff:10.1.1.7): link_downed +2" in found.link.evidence
    steps = "\n".join(found.next_steps)
    assert ("ethtool -S ens1np0" in steps) is not fabric.trees
    assert "rdma statistic show link mlx5_1/1" in steps and "ibdiagnet" not in steps


@pytest.mark.parametrize("boxes", [False, True])
def test_a_virtual_nic_is_all_its_ports(boxes: bool, tmp_path: Path) -> None:
    """Fused adapters are named with their ports, and each port's counters are shown."""
    found = verdict(tmp_path, Fabric(fused=True, boxes=boxes))
    assert found.link is not None and found.confidence == "high"
    assert found.link.receiver.nic == "mlx5_0:1+mlx5_1:1"
    why = said_why(found)
    assert "port mlx5_0:1 of gpu-worker-7 (LID 110): no error counter rose" in why
    assert "port mlx5_1:1 of gpu-worker-7 (LID 111), since the job started, 31m 00s: link_downed +2" in why


@pytest.mark.parametrize("boxes", [False, True])
def test_pxn_leads_to_the_proxys_nic(boxes: bool, tmp_path: Path) -> None:
    """Where a neighbour's proxy sends for a rank, the port is the neighbour's, and it says so."""
    found = verdict(tmp_path, Fabric(pxn=True, moved={("gpu-worker-6", "mlx5_0"): dict(FAULTY)}, boxes=boxes))
    assert found.link is not None and found.confidence == "high"
    assert (found.link.sender.rank, found.link.sender.nic) == (SENDER, "mlx5_0:1")
    assert "rank 1 sends by the proxy of rank 0 over mlx5_0:1 (PXN)" in said_why(found)


# ---- everybody inside ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timed", [True, False])
def test_a_port_that_stands_out_is_named_where_nobody_finished(timed: bool, tmp_path: Path) -> None:
    """One port alone may be any of its connections: the port and its rank, no link, and not for sure."""
    found = verdict(tmp_path, Fabric(everyone_inside=True, timed=timed))
    assert (found.kind, found.confidence, found.link) == ("network", "medium", None)
    assert [culprit.rank for culprit in found.culprits] == [RECEIVER]
    assert "port mlx5_1:1 of gpu-worker-7" in found.headline


def test_two_ports_that_stand_out_are_one_link(tmp_path: Path) -> None:
    """Both ports of one connection count errors: it is that connection, still not for sure."""
    both: Moves = {HERE_TOO: {"local_ack_timeout_err": 40}, THERE: dict(FAULTY)}
    found = verdict(tmp_path, Fabric(everyone_inside=True, moved=both))
    assert found.link is not None and found.confidence == "medium"
    assert (found.link.sender.rank, found.link.receiver.rank) == (SENDER, RECEIVER)


@pytest.mark.parametrize("moved", [{}, ALIKE, {THERE: dict(FAULTY), AWAY: dict(FAULTY)}], ids=["none", "all", "two"])
def test_no_port_is_accused_where_none_stands_out(moved: Moves, tmp_path: Path) -> None:
    """Nothing moved, all moved alike, or two that share no connection: nobody is accused."""
    found = verdict(tmp_path, Fabric(everyone_inside=True, moved=moved))
    assert (found.kind, found.culprits, found.link) == ("network", (), None)


@pytest.mark.parametrize(("timing", "kind"), [(True, "network"), (False, "unknown")])
def test_a_group_of_two_is_its_own_link(timing: bool, kind: str) -> None:
    """Two members have one connection: it is named without a black box; without timing as where to look, no more."""
    ops = {rank: [*([Op("pair")] * 9), Op("pair", state="started" if timing else "scheduled")] for rank in (4, 9)}
    found = hangscope.diagnose(Builder({"pair": (4, 9)}, ops, timing=timing, hung_s=600.0).build())
    assert (found.kind, found.culprits) == (kind, ())
    assert (found.link is not None and {found.link.sender.rank, found.link.receiver.rank} == {4, 9}) is timing
    assert timing or "they have one connection, from rank 4 to rank 9" in said_why(found)
    assert found.confidence == ("medium" if timing else "low")


def test_a_group_of_two_in_which_one_never_started_is_no_link() -> None:
    """Timing shows that one kernel never started: then it is not the connection."""
    ops = {
        4: [*([Op("pair")] * 9), Op("pair", state="started")],
        9: [*([Op("pair")] * 9), Op("pair", state="scheduled")],
    }
    found = hangscope.diagnose(Builder({"pair": (4, 9)}, ops, hung_s=600.0).build())
    assert (found.kind, found.link) == ("gpu", None)


# ---- the parts -------------------------------------------------------------------------------------------------------


def change(counter: str, before: int, after: int, seconds: float | None = None) -> CounterChange:
    return CounterChange("n", "mlx5_0", 1, counter, before, after, Source("f"), seconds)


@pytest.mark.parametrize(
    ("counter", "rise", "seconds", "exceeded"),
    [
        ("link_downed", 1, None, True),
        ("symbol_error", 120, 3600.0, False),
        ("symbol_error", 121, 3600.0, True),
        ("symbol_error", 10**6, None, False),
        ("link_error_recovery", 6, 60.0, True),
        ("local_ack_timeout_err", 1800, 1800.0, False),
        ("carrier_changes", 2, None, False),
        ("carrier_changes", 3, None, True),
        ("port_xmit_wait", 10**9, 1.0, False),
        ("of_another_vendor", 10**9, 1.0, False),
    ],
)
def test_published_limits_are_rates(counter: str, rise: int, seconds: float | None, exceeded: bool) -> None:
    """A limit per time needs the time between the samples; one without counts the rise itself; load has none."""
    assert over_limit(change(counter, 7, 7 + rise, seconds)) is exceeded


def test_a_counter_that_fell_is_said_to_have_counted_at_least_what_it_has() -> None:
    """After a reset or a wrap the rise is a lower bound, and is said to be one."""
    assert counter_text(change("symbol_error", 4_294_967_290, 5)).startswith("symbol_error at least +5 (")
    assert "reset or wrapped" in counter_text(change("symbol_error", 9, 5))


def test_every_counter_has_a_meaning_and_load_is_no_fault() -> None:
    """What tells of congestion never makes a port suspect."""
    assert all(counter.meaning for counter in COUNTERS.values())
    assert not any(counter.fault for counter in COUNTERS.values() if "congestion" in counter.meaning)


def test_a_tree_is_replayed_by_the_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HANGSCOPE_SYSFS names a copied /sys, or its class folder: counters, state and addresses come from there."""
    place = tmp_path / "case"
    place.mkdir()
    Fabric(trees=True).write(place)
    tree = place / "nodes" / "gpu-worker-7" / "sys.stall"
    taken = []
    for root in (tree, tree / "class"):
        monkeypatch.setenv("HANGSCOPE_SYSFS", str(root))
        taken.append({key: value for key, value in sys_counters.snapshot().items() if key != "at"})
    assert taken[0] == taken[1]
    assert taken[0]["counters"]["mlx5_1/1/link_downed"] == 3
    port = next(row for row in taken[0]["ports"] if row["name"] == "mlx5_1")
    assert (port["state"], port["lid"], port["layer"]) == ("ACTIVE", 111, "IB")


def test_samples_and_logs_agree_on_a_ports_address(tmp_path: Path) -> None:
    """The GID of a sample is the one that NCCL logs, dotted, so that redaction knows it for an address."""
    Fabric(layer="RoCE", logs=()).write(tmp_path)
    without = {(port.node, str(port)): port.gid for port in hangscope.load([tmp_path]).facts.ports}
    Fabric(layer="RoCE").write(tmp_path)
    assert without == {(port.node, str(port)): port.gid for port in hangscope.load([tmp_path]).facts.ports}
    assert without["gpu-worker-7", "mlx5_1:1"] == "::ffff:10.1.1.7"


def test_copied_trees_say_which_was_first(tmp_path: Path) -> None:
    """By their names; where these say nothing, by the counters, which only grow."""
    names = {"sys.start": "one", "sys.stall": "another"}
    for plain in (False, True):
        place = tmp_path / str(plain)
        place.mkdir()
        Fabric(trees=True).write(place)
        for node in NODES if plain else ():
            for old, new in names.items():
                (place / "nodes" / node / old).rename(place / "nodes" / node / new)
        rises = {(c.node, c.counter): c.rise for c in hangscope.load([place]).facts.counters}
        assert rises == {("gpu-worker-7", counter): rise for counter, rise in FAULTY.items()}


def test_a_warning_that_names_an_adapter_leads_to_the_channel_over_it(tmp_path: Path) -> None:
    """NCCL's completion error names the adapter and no channel: the link is that of the channel which uses it."""
    fabric = Fabric(moved={}, everyone_inside=True)
    fabric.write(tmp_path)
    log = next(tmp_path.rglob("nccl.gpu-worker-6.1001.log"))
    lines = log.read_text().splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if "1[1] -> 3[1] [send]" in line)
    lines.insert(at + 1, lines[at].replace("Channel 00/0", "Channel 02/0").replace("NET/IB/1/", "NET/IB/0/"))
    lines.append(
        "[2026-09-21T14:16:00.000] gpu-worker-6:1001:1001 [1] transport/net_ib/p2p.cc:666 NCCL WARN NET/IB: Got "
        "completion from peer 10.0.0.7<41873> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=1 "
        "hca mlx5_1\n"
    )
    log.write_text("".join(lines))
    found = hangscope.diagnose(hangscope.load([tmp_path]))
    assert found.link is not None and found.confidence == "high"
    assert (found.link.sender.nic, found.link.channel) == ("mlx5_1:1", 0)


def test_a_warning_of_the_receiving_end_names_the_connection_that_there_is(tmp_path: Path) -> None:
    """The receiver's own write failed: NCCL made a connection from its peer alone, and that is the link."""
    Fabric(moved={}, everyone_inside=True).write(tmp_path)
    log = next(tmp_path.rglob("nccl.gpu-worker-7.1003.log"))
    warning = (
        "[2026-09-21T14:16:00.000] gpu-worker-7:1003:1003 [1] transport/net_ib/p2p.cc:666 NCCL WARN NET/IB: Got "
        "completion from peer 10.0.0.6<41873> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 "
        "vendor_err=129 req_type=Recv hca mlx5_1\n"
    )
    log.write_text(log.read_text() + warning)
    found = hangscope.diagnose(hangscope.load([tmp_path]))
    assert found.link is not None
    assert (found.link.sender.rank, found.link.receiver.rank) == (SENDER, RECEIVER)
    assert (found.link.sender.nic, found.link.receiver.nic) == ("mlx5_1:1", "mlx5_1:1")


def test_a_log_in_a_folder_of_such_a_name_is_a_log(tmp_path: Path) -> None:
    """A path like that of an interface's statistics makes no counter of a log."""
    place = tmp_path / "net" / "run" / "statistics"
    place.mkdir(parents=True)
    (place / "rank_0.log").write_text("[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: x\n")
    (place / "rx_errors").write_text("7\n")
    job = hangscope.load([tmp_path])
    assert [error.type for error in job.facts.errors] == ["ValueError"]


@given(
    st.dictionaries(
        st.sampled_from(["name", "port", "state", "layer", "lid", "gid", "interface", "pci"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | st.lists(st.integers()),
    ),
    st.integers() | st.floats() | st.text(max_size=9),
)
@settings(max_examples=15, deadline=None)
def test_a_hostile_sample_is_harmless(row: dict[str, object], value: object) -> None:
    """Whatever a sample holds, both samples are read or passed over, and the verdict says the same about the ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Fabric(moved={}, logs=(1, 3)).write(Path(name))
        for file in (folder / "nodes/gpu-worker-7/counters").iterdir():
            sample = json.loads(file.read_text())
            sample["ports"] = [row, row, 7, {**row, "name": "mlx5_1"}]
            sample["counters"] |= {"mlx5_1/1/link_downed": value, "//": 3, "a/b/c/d": 10**30, "x" * 999 + "/1/y": 5}
            file.write_text(json.dumps(sample))
        found = hangscope.diagnose(hangscope.load([folder]))
    assert [culprit.rank for culprit in found.culprits] == [RECEIVER]


def test_a_port_that_vanished_is_suspect(tmp_path: Path) -> None:
    """An adapter that the last sample has no more is gone: its counters cannot say anything."""
    Fabric(moved={}).write(tmp_path)
    file = tmp_path / "nodes/gpu-worker-7/counters/stall.json"
    sample = json.loads(file.read_text())
    sample["counters"] = {key: value for key, value in sample["counters"].items() if not key.startswith("mlx5_1")}
    sample["ports"] = [row for row in sample["ports"] if row["name"] != "mlx5_1"]
    file.write_text(json.dumps(sample))
    found = hangscope.diagnose(hangscope.load([tmp_path]))
    assert "port mlx5_1:1 of gpu-worker-7 (LID 111) was gone at the stall" in said_why(found)
    assert found.confidence == "high"


def test_an_adapter_that_nccl_does_not_use_is_unrelated(tmp_path: Path) -> None:
    """Errors on a port that no channel runs over, such as a storage adapter's, change nothing."""
    Fabric(moved={}).write(tmp_path)
    for name, value in (("start", 0), ("stall", 9)):
        file = tmp_path / f"nodes/gpu-worker-7/counters/{name}.json"
        sample = json.loads(file.read_text())
        sample["counters"]["mlx5_8/1/link_downed"] = value
        file.write_text(json.dumps(sample))
    job = hangscope.load([tmp_path])
    assert Ports(job).suspects == ()
    assert "mlx5_8" not in said_why(hangscope.diagnose(job))


def test_the_kernels_words_about_the_port_are_quoted(tmp_path: Path) -> None:
    """A kernel's line about the port's own PCI address stands beside its counters; one about another does not."""
    Fabric().write(tmp_path)
    kernel = tmp_path / "nodes/gpu-worker-7/kernel"
    kernel.mkdir()
    at = "2026-09-21T14:16:00.000000+00:00"
    lines = (f"{at} mlx5_core 0000:31:00.0 ib1: Link down", f"{at} mlx5_core 0000:77:00.0 ib7: Link down")
    (kernel / "messages.txt").write_text("".join(f"{line}\n" for line in lines))
    why = said_why(hangscope.diagnose(hangscope.load([tmp_path])))
    assert "kernel of gpu-worker-7: mlx5_core 0000:31:00.0 ib1: Link down" in why and "0000:77" not in why


def test_the_verdict_does_not_depend_on_which_file_is_read_first(tmp_path: Path) -> None:
    """Communicators, ports and counters in the other order: the same link, the same sentences."""
    job = hangscope.load([Fabric(moved={HERE_TOO: {"symbol_error": 9}, THERE: dict(FAULTY)}).write(tmp_path)])
    facts = replace(
        job.facts,
        communicators=job.facts.communicators[::-1],
        ports=job.facts.ports[::-1],
        counters=job.facts.counters[::-1],
    )
    one, other = hangscope.diagnose(job), hangscope.diagnose(replace(job, facts=facts))
    assert (one.link, one.why, one.next_steps) == (other.link, other.why, other.next_steps)


@pytest.mark.parametrize(("code", "meaning"), [(79, "fallen off the bus"), (45, ""), (None, ""), (9999, "")])
def test_an_xid_has_its_meaning(code: int | None, meaning: str) -> None:
    """The kernel's number is followed by what it means and what helps; one that is not known by nothing."""
    note = xids.note(code)
    assert (meaning in note) if meaning else note == ""


def test_effects_are_no_cause() -> None:
    """What a killed process or a peer's failure leaves in the kernel's log accuses no GPU."""
    ops = {rank: [*([Op("world")] * 9), Op("world", state="started")] for rank in range(4)}
    processes = {rank: Process(rank, node="n", pid=70 + rank) for rank in range(4)}
    builder = Builder({"world": range(4)}, ops, processes=processes, hung_s=600.0)
    for code, accused in ((45, []), (63, []), (137, []), (79, [2])):
        message = KernelMessage("xid", f"NVRM: Xid (PCI:0000:9b:00): {code}", Source("k"), "n", pid=72, code=code)
        job = builder.build()
        found = hangscope.diagnose(replace(job, facts=replace(job.facts, kernel=(message,))))
        assert [culprit.rank for culprit in found.culprits] == accused, code
    assert "fallen off the bus; restart the node" in said_why(found)
