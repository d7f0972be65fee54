"""The node's GPUs, from what nvidia-smi prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.sources.gpu_state import nvidia_smi


def test_what_nvidia_smi_prints_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures by PCI address as the kernel writes it; what the driver cannot say is not known, and not zero."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '00000000:9B:00.0, 100, 131.25'\necho '00000000:9C:00.0, [N/A], [N/A]'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert nvidia_smi.usage() == {
        "0000:9b:00.0": {"gpu_busy_percent": 100.0, "gpu_power_w": 131.25},
        "0000:9c:00.0": {"gpu_busy_percent": None, "gpu_power_w": None},
    }


def test_without_nvidia_smi_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, no figures, no complaint."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_smi.usage() == {}


def test_gpus_are_found_by_order_among_the_visible() -> None:
    """CUDA_VISIBLE_DEVICES by index and by UUID; nvidia-smi's long PCI domain becomes the kernel's."""
    gpus = [{"index": n, "uuid": f"GPU-{n}{n}", "pci": nvidia_smi.pci(f"00000000:0{n}:00.0")} for n in range(4)]
    assert nvidia_smi.by_order(gpus, None, 2) == "0000:02:00.0"
    assert nvidia_smi.by_order(gpus, "3,1", 1) == "0000:01:00.0"
    assert nvidia_smi.by_order(gpus, "GPU-33", 0) == "0000:03:00.0"
    assert nvidia_smi.by_order(gpus, None, None) is None
