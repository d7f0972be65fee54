"""Kernel messages since the job started, with their time of day, from /dev/kmsg or else the journal."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from datetime import datetime, timezone

from hangscope.sources.kernel_log.schema import FOLDER
from hangscope.sources.saving import Saving

WHAT = "kernel messages"

MAX_BYTES = 4 << 20


def save(node: Saving, sample: int) -> None:
    """All since the job started, once."""
    del sample
    text, why = messages(node.started_at)
    if text is None:
        node.gap(why)
    elif text:
        node.write(f"{FOLDER}/messages.txt", text)


def messages(since: float) -> tuple[str | None, str]:
    """The messages since `since` (seconds since the epoch), or why they cannot be read."""
    text, why = _kmsg(since)
    if text is not None:
        return text, ""
    journal = _journal(since)
    return (journal, "") if journal is not None else (None, why)


def _kmsg(since: float) -> tuple[str | None, str]:
    try:
        device = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return None, f"/dev/kmsg: {error.strerror} (kernel.dmesg_restrict, or a container)"
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    lines: list[str] = []
    size = 0
    try:
        while size < MAX_BYTES:
            try:
                record = os.read(device, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the ring moved on while we read: go on with what is there now
            head, _, body = record.decode(errors="replace").partition(";")
            fields = head.split(",")
            if len(fields) < 3 or not fields[2].isdigit():
                continue
            at = booted + int(fields[2]) / 1e6
            if at < since:
                continue
            stamp = datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="microseconds")
            lines.append(f"{stamp} {body.splitlines()[0] if body else ''}")
            size += len(lines[-1])
    except OSError as error:
        return None, f"/dev/kmsg: {error.strerror}"
    finally:
        os.close(device)
    return "\n".join(lines) + "\n" if lines else "", ""


def _journal(since: float) -> str | None:
    program = shutil.which("journalctl")
    if program is None:
        return None
    command = [program, "-k", "-q", "--no-pager", "-o", "short-iso-precise", "--since", f"@{int(since)}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout[-MAX_BYTES:] if done.returncode == 0 and done.stdout.strip() else None
