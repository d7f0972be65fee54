"""Kernel messages and network counters: only what can matter to a hang, and never out of a training log's prose."""
# ruff: noqa: E501  (log lines are quoted whole)

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hangscope.model import KernelMessage
from hangscope.reader.load import load
from hangscope.reader.logs.kernel_log import KernelLog


def read(*lines: str) -> list[KernelMessage]:
    log = KernelLog("dmesg.txt")
    for number, line in enumerate(lines, 1):
        log.feed(number, line)
    return log.messages


STAMPS = [
    ("[12345.678901] ", "12345.678901", None),
    ("[Sun Nov 15 01:23:34 2026] ", "Sun Nov 15 01:23:34 2026", None),
    ("Nov 15 01:23:34 gpu-a017 kernel: ", "Nov 15 01:23:34", "gpu-a017"),
    ("Nov 15 01:23:34 gpu-a017 kernel: [12345.678901] ", "Nov 15 01:23:34", "gpu-a017"),
    ("2026-11-15T01:23:34.123456+00:00 gpu-a017 kernel: ", "2026-11-15T01:23:34.123456+00:00", "gpu-a017"),
    ("kern  :err   : [12345.678901] ", "12345.678901", None),
]


@pytest.mark.parametrize(("stamp", "at", "host"), STAMPS)
def test_time_and_host_are_read_in_every_form(stamp: str, at: str, host: str | None) -> None:
    """dmesg's and the journal's time stamps are understood; the journal names the host."""
    (found,) = read(f"{stamp}NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python, GPU has fallen off the bus.")
    assert (found.at, found.node) == (at, host)
    assert (found.kind, found.code, found.pci, found.pid) == ("xid", 79, "0000:9b:00.0", 1234)


LINES = {
    "Out of memory: Killed process 751 (python3) total-vm:123kB, anon-rss:1kB": ("oom", 751, None, None, None),
    "Memory cgroup out of memory: Killed process 751 (python3) total-vm:123kB": ("oom", 751, None, None, None),
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,task=python3,pid=751,uid=0": (
        "oom",
        751,
        None,
        None,
        None,
    ),
    "oom_reaper: reaped process 751 (python3), now anon-rss:0kB": ("oom", 751, None, None, None),
    "NVRM: Xid (PCI:0000:3b:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008": (
        "xid",
        None,
        "0000:3b:00.0",
        None,
        31,
    ),
    "NVRM: Xid (PCI:0000:3b:00): 119, Timeout after 6s of waiting for RPC response": (
        "xid",
        None,
        "0000:3b:00.0",
        None,
        119,
    ),
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress": (
        "xid",
        None,
        "0000:05:00.0",
        None,
        12028,
    ),
    "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.": ("xid", None, "0000:9b:00.0", None, 79),
    "mlx5_core 0000:5c:00.0 ens1f0np0: Link down": ("link", None, "0000:5c:00.0", "ens1f0np0", None),
    "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)": (
        "link",
        None,
        "0000:5c:00.0",
        None,
        None,
    ),
    "mlx5_core 0000:5c:00.0: poll_health:829:(pid 0): device's health compromised - reached miss count": (
        "nic",
        None,
        "0000:5c:00.0",
        None,
        None,
    ),
    "mlx5_core 0000:5c:00.0: mlx5_pcie_event:301:(pid 9): Detected insufficient power on the PCIe slot (27W).": (
        "nic",
        None,
        "0000:5c:00.0",
        None,
        None,
    ),
    "bnxt_en 0000:41:00.0 enp65s0f0np0: NIC Link is Down": ("link", None, "0000:41:00.0", "enp65s0f0np0", None),
    "bond0: link down": ("link", None, None, "bond0", None),
    "INFO: task python3:751 blocked for more than 120 seconds.": ("other", 751, None, None, None),
    "python3[751]: segfault at 0 ip 00007f sp 00007ffe error 4 in libtorch_cuda.so": ("other", 751, None, None, None),
    "pcieport 0000:40:01.1: AER: Uncorrected (Fatal) error received: 0000:9b:00.0": ("other", None, None, None, None),
}


@pytest.mark.parametrize("line", LINES)
def test_messages_that_matter_are_told_apart(line: str) -> None:
    """Memory, GPU, link, adapter and stuck tasks each give their kind and whom they are about."""
    (found,) = read(f"[ 99.5] {line}")
    assert (found.kind, found.pid, found.pci, found.device, found.code) == LINES[line]
    assert found.text == line


@pytest.mark.parametrize(
    "line",
    [
        "[ 99.5] usb 1-1: new high-speed USB device",
        "[ 99.5] mlx5_core 0000:5c:00.0: firmware version: 28.39.1002",
        "loss 0.3, link down the road",
        "eth0: link down is a phrase in this training log",
        "the linker was killed process 12 (x)",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    """Harmless kernel lines, and training logs that use the same words, give nothing."""
    assert read(line) == []


def incident(tmp_path: Path) -> Path:
    node = tmp_path / "nodes/gpu-a017"
    for name in ("kernel", "counters"):
        (node / name).mkdir(parents=True)
    (tmp_path / "incident.json").write_text('{"schema": "hangscope.incident/1", "job": "1", "attempt": "0"}')
    (node / "node.json").write_text(
        '{"schema": "hangscope.node/1", "node": "gpu-a017", "ranks": [{"rank": 0, "pid": 751, "state": "gone", "exit_status": null}]}'
    )
    (node / "kernel/messages.txt").write_text("[ 99.5] Memory cgroup out of memory: Killed process 751 (python3)\n")
    return node


def test_messages_of_an_incident_belong_to_its_node(tmp_path: Path) -> None:
    """In an incident the directory says whose kernel spoke."""
    incident(tmp_path)
    job = load([tmp_path])
    assert [(m.kind, m.pid, m.node) for m in job.facts.kernel] == [("oom", 751, "gpu-a017")]


def test_captured_messages_need_no_kernel_stamp(tmp_path: Path) -> None:
    """What the recorder took from the kernel has ISO times; in its own directory every such line is the kernel's."""
    node = incident(tmp_path)
    at = "2026-11-15T01:23:34.123456+00:00"
    lines = ("bond0: link down", "INFO: task python3:751 blocked for more than 120 seconds.", "usb 1-1: new device")
    (node / "kernel/messages.txt").write_text("".join(f"{at} {line}\n" for line in lines))
    found = load([tmp_path]).facts.kernel
    assert [(m.kind, m.at, m.node) for m in found] == [("link", at, "gpu-a017"), ("other", at, "gpu-a017")]


def test_counters_are_differences_between_start_and_stall(tmp_path: Path) -> None:
    """Only what changed between the two snapshots counts; what fell was reset or wrapped, and rose by what it has."""
    node = incident(tmp_path)
    before = {"mlx5_0/1/link_downed": 3, "mlx5_0/1/symbol_error": 5, "eth0//carrier_changes": 2, "mlx5_1/1/wrapped": 9}
    after = {"mlx5_0/1/link_downed": 4, "mlx5_0/1/symbol_error": 5, "eth0//carrier_changes": 4, "mlx5_1/1/wrapped": 1}
    (node / "counters/stall.json").write_text(json.dumps({"at": "2026-11-15T02:30:00Z", "counters": after}))
    (node / "counters/start.json").write_text(json.dumps({"at": "2026-11-15T02:00:00Z", "counters": before}))
    found = {(c.node, c.device, c.port, c.counter): (c.rise, c.reset) for c in load([tmp_path]).facts.counters}
    assert found == {
        ("gpu-a017", "mlx5_0", 1, "link_downed"): (1, False),
        ("gpu-a017", "eth0", None, "carrier_changes"): (2, False),
        ("gpu-a017", "mlx5_1", 1, "wrapped"): (1, True),
    }


def test_one_snapshot_alone_says_nothing(tmp_path: Path) -> None:
    """Counters since boot, without a second snapshot, are no evidence."""
    node = incident(tmp_path)
    (node / "counters/stall.json").write_text(
        '{"at": "2026-11-15T02:30:00Z", "counters": {"mlx5_0/1/link_downed": 900}}'
    )
    job = load([tmp_path])
    assert job.facts.counters == ()
    assert [gap.node for gap in job.gaps if "counters" in gap.what] == ["gpu-a017"]
    assert [(str(port), port.sampled) for port in job.facts.ports] == [("mlx5_0:1", False)]
