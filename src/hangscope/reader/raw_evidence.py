"""Everything that was recognised in the files, before anyone is identified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from hangscope.model import Gap, Source, ThreadStack
from hangscope.model.statements import Statement
from hangscope.reader.dumps.raw_dump import RawDump
from hangscope.reader.find_files import Found
from hangscope.reader.logs.launchers.slurm_log import MOST_STATEMENTS
from hangscope.reader.logs.log_file import TextFile
from hangscope.reader.sources import error_files, live_status
from hangscope.reader.sources.incident_files import Manifest, NodeFile
from hangscope.sources.kubernetes.read import Pod, Pods
from hangscope.sources.net_counters import read_sysfs as sysfs
from hangscope.sources.report import SourceFile

T = TypeVar("T")


@dataclass
class Evidence:
    """What the files say, each fact with its file."""

    dumps: list[RawDump] = field(default_factory=list)
    texts: list[TextFile] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    nodes: list[NodeFile] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)
    source_files: list[SourceFile] = field(default_factory=list)
    errors: list[tuple[error_files.ErrorFile, str, str | None, tuple[str, ...]]] = field(default_factory=list)
    """(torchrun's error file, its name, its node, its path)."""
    trees: dict[tuple[str, ...], sysfs.Tree] = field(default_factory=dict)
    """Copies of /sys, by where they lie; each becomes a file of its source."""
    statuses: list[live_status.LiveStatus] = field(default_factory=list)
    stacks: list[ThreadStack] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Shown name of a dump → its path, for the directories it lies in."""
    hosts: set[str] = field(default_factory=set)
    """Hosts that own directories here."""
    refused: set[int] = field(default_factory=set)
    """Ranks whose dump is there and could not be read at all."""
    refusals: dict[Gap, tuple[str, ...]] = field(default_factory=dict)
    """Gap of a dump that could not be read → the dump's path."""
    looked_at: list[str] = field(default_factory=list)
    """Files in which nothing was recognised."""
    unknown_texts: list[tuple[str, int]] = field(default_factory=list)
    """Those of them that are text, with their lines."""
    waiting: list[tuple[Found, str]] = field(default_factory=list)
    """Dumps on disk, with their form, that are read last: many of them at a time."""
    _listed: int = 0
    """Processes that launchers' lines list, in all texts."""

    @property
    def useful(self) -> bool:
        return bool(
            self.dumps
            or any(text.useful for text in self.texts)
            or self.statements
            or self.nodes
            or any(each.useful for each in self.source_files)
            or self.errors
            or live_status.stood_still(self.statuses)
        )

    def reported_by(self, source: type[T]) -> list[T]:
        """What was read from files, of one kind."""
        return [each.report for each in self.source_files if isinstance(each.report, source)]

    @property
    def pods(self) -> list[Pod]:
        """What Kubernetes says of pods, in all files."""
        return [pod for report in self.reported_by(Pods) for pod in report.pods]

    @property
    def reason_without_manifest(self) -> str | None:
        """Why it was written: nothing was captured, but the agents' status shows a job that stood still."""
        return "status" if live_status.stood_still(self.statuses) else None

    def add_text(self, text: TextFile) -> None:
        """A text that says something. What launchers list one by one is bounded over all files together."""
        self.texts.append(text)
        self._listed += len(text.launcher.statements)
        over = self._listed - MOST_STATEMENTS
        if over > 0:
            del text.launcher.statements[-over:]
            text.launcher.slurm.passed_over += over
            self._listed = MOST_STATEMENTS
        if text.launcher.slurm.passed_over:
            what = f"how {text.launcher.slurm.passed_over:,} tasks or more ended that {text.file} lists"
            self.gaps.append(Gap(what, f"not kept: more than {MOST_STATEMENTS:,} are listed", source=Source(text.file)))
            text.launcher.slurm.passed_over = 0

    def use_last_status(self) -> None:
        """What agents saw last of ranks that nobody captured: who they are, and how far, where the job stood still, or
        where they have not moved since others were captured: nodes without a common disk capture when they wait."""
        known = {said.process.rank for node in self.nodes for said in node.statements}
        captured_ns = max((manifest.captured_at_ns or 0 for manifest in self.manifests), default=0)
        stood = not self.manifests and not self.dumps and live_status.stood_still(self.statuses)
        for status in live_status.newest(self.statuses):
            left = status.without(known)
            self.statements.extend(live_status.statements(left, waits=stood))
            kept = left if stood else live_status.unmoved_since(left, captured_ns / 1e9)
            if kept.rows:
                self.dumps.extend(live_status.dumps(kept))
                self.stacks.extend(live_status.stacks(kept))
                self.paths[status.file] = tuple(status.file.split("/"))

    def said(self) -> dict[str, Any]:
        """The fields that hold something: hundreds of thousands of files say nothing, and must not take memory."""
        named = ((each.name, getattr(self, each.name)) for each in fields(self) if not each.name.startswith("_"))
        return {name: value for name, value in named if value}

    def add(self, said: Mapping[str, Any]) -> None:
        """Put what was read elsewhere to the rest."""
        for name, value in said.items():
            mine = getattr(self, name)
            if name == "texts":
                for text in value:
                    self.add_text(text)
            elif isinstance(mine, list):
                mine.extend(value)
            else:
                mine.update(value)
