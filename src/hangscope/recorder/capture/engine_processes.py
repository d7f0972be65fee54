"""The processes of an engine that are no ranks: API servers, engine cores, detokenizers. They are shown, with their
stacks, and never missed by anybody."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hangscope import engine_roles
from hangscope.incident import manifest
from hangscope.incident.node_dir import NodeDir
from hangscope.processes import linux_process, process_roles
from hangscope.recorder.capture import python_stacks

MOST = 32


class EngineProcesses:
    """Of those below the command, all but the ranks, as they were when the capture began."""

    def __init__(self, command: int | None, ranks: Collection[int]) -> None:
        self.looked = command is not None
        """Whether there was a command to look below."""
        found = process_roles.roles_below(command) if command is not None else {}
        self._roles = {pid: role for pid, role in list(found.items()) if pid not in ranks}
        self._states = {pid: stat.state for pid in self._roles if (stat := linux_process.stat(pid)) is not None}

    def save_stacks(self, node_dir: NodeDir, number: int) -> None:
        """Where each of them is, from outside."""
        for pid, role in list(self._roles.items())[:MOST]:
            text, by, why = python_stacks.from_outside(pid)
            if text is None:
                node_dir.gap(f"stacks of {role.label} (pid {pid})", why)
                continue
            head = f"# hangscope stacks pid={pid} sample={number} by={by} at={manifest.now()}\n"
            node_dir.write(f"stacks/process_{pid}.{number}.txt", head + text[: python_stacks.MOST_BYTES])

    def rows(self) -> list[dict[str, Any]]:
        """Their lines of node.json."""
        return [
            {"pid": pid, "state": self._states.get(pid), "role": engine_roles.to_value(role)}
            for pid, role in list(self._roles.items())[:MOST]
        ]
