"""Network counters from a tree like /sys."""

from __future__ import annotations

from pathlib import Path

from hangscope.sources.net_counters import capture as sys_counters


def test_network_counters_are_keyed_by_device_and_port(tmp_path: Path) -> None:
    """InfiniBand ports with both kinds of counters, and network interfaces without a port."""
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    for folder, name, value in (
        (port / "counters", "link_downed", "2"),
        (port / "hw_counters", "out_of_sequence", "17"),
        (tmp_path / "net" / "eth0" / "statistics", "rx_errors", "5"),
        (tmp_path / "net" / "eth0", "carrier_changes", "3"),
        (tmp_path / "net" / "lo" / "statistics", "rx_errors", "9"),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{value}\n")
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    assert sys_counters.snapshot(tmp_path)["counters"] == {
        "mlx5_0/1/link_downed": 2,
        "mlx5_0/1/out_of_sequence": 17,
        "eth0//rx_errors": 5,
        "eth0//carrier_changes": 3,
    }
    [nic] = sys_counters.ports(tmp_path)
    assert (nic["name"], nic["port"], nic["state"], nic["rate"]) == ("mlx5_0", 1, "ACTIVE", "400 Gb/sec (4X NDR)")
