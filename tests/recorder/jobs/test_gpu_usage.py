"""How busy the GPUs are, from what nvidia-smi prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope.recorder.capture import nvidia_smi


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
