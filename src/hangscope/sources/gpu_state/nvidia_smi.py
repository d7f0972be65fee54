"""The node's GPUs, by nvidia-smi: which ones there are, which process uses which, and the full report at the stall."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

INVENTORY_S = 15.0
REPORT_S = 15.0


def _run(arguments: list[str], deadline_s: float) -> tuple[str | None, str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None, "nvidia-smi is not installed"
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=deadline_s, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        # A driver that lost a GPU lets nvidia-smi hang: that it does is worth knowing.
        return None, f"nvidia-smi did not answer within {deadline_s:g} s"
    except OSError as error:
        return None, error.strerror or str(error)
    return (done.stdout, "") if done.returncode == 0 else (None, f"nvidia-smi ended with status {done.returncode}")


def inventory() -> tuple[list[dict[str, Any]], str | None]:
    """The GPUs, and the driver's version."""
    text, _ = _run(["--query-gpu=index,name,uuid,pci.bus_id,driver_version", "--format=csv,noheader"], INVENTORY_S)
    found: list[dict[str, Any]] = []
    driver = None
    for line in (text or "").splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 5 and fields[0].isdigit():
            found.append({"index": int(fields[0]), "name": fields[1], "uuid": fields[2], "pci": pci(fields[3])})
            driver = fields[4]
    return found, driver


def pci(text: str) -> str:
    """The address as the kernel writes it: nvidia-smi gives the domain eight digits."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def users() -> dict[int, str]:
    """Process id to the PCI address of the GPU it computes on. Empty inside most containers, which hide the pids."""
    text, _ = _run(["--query-compute-apps=pid,gpu_bus_id", "--format=csv,noheader"], INVENTORY_S)
    found: dict[int, str] = {}
    for line in (text or "").splitlines():
        number, _, bus = line.partition(",")
        if number.strip().isdigit():
            found[int(number)] = pci(bus.strip())
    return found


def usage() -> dict[str, dict[str, float | None]]:
    """PCI address to how busy the GPU is (percent of the last moments in which a kernel ran) and what it draws (watts).

    A GPU that runs a kernel which never ends is as busy as one that spins in a collective; an idle one runs neither.
    """
    text, _ = _run(["--query-gpu=pci.bus_id,utilization.gpu,power.draw", "--format=csv,noheader,nounits"], INVENTORY_S)
    found: dict[str, dict[str, float | None]] = {}
    for line in (text or "").splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3:
            found[pci(fields[0])] = {"gpu_busy_percent": _figure(fields[1]), "gpu_power_w": _figure(fields[2])}
    return found


def _figure(text: str) -> float | None:
    """None for what nvidia-smi cannot say: [N/A], [Not Supported]."""
    try:
        return float(text)
    except ValueError:
        return None


def by_order(gpus: list[dict[str, Any]], visible: str | None, local_rank: int | None) -> str | None:
    """The GPU that a rank most likely uses: the one at its local rank among those that it can see."""
    if local_rank is None or not gpus:
        return None
    if visible:
        chosen = [word.strip() for word in visible.split(",") if word.strip()]
        word = chosen[local_rank] if local_rank < len(chosen) else chosen[0] if len(chosen) == 1 else ""
        for each in gpus:
            if word in (str(each["index"]), each["uuid"]) or (
                word.startswith("GPU-") and each["uuid"].startswith(word)
            ):
                return str(each["pci"])
        return None
    return str(gpus[local_rank]["pci"]) if local_rank < len(gpus) else None


def report() -> tuple[str | None, str]:
    """Everything that nvidia-smi knows, or why there is nothing."""
    return _run(["-q"], REPORT_S)
