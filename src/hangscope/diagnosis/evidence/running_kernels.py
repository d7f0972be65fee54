"""What the ranks' GPUs ran when they were asked, by cores of the GPUs: which kernel, or that nothing did.

A kernel that is listed runs. That none is listed says less: several processes on one GPU may get an empty core though a
kernel waits, a context that has failed runs nothing, and who is asked after its peers may have lost them by then. So an
empty core counts only where nothing of that is known, and never alone. A rank without a core is not known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cached_property

from hangscope.diagnosis.phrases import ranks_text
from hangscope.model import FailureKind, GpuCore, GpuKernel, Job, Source
from hangscope.text import verb

_NCCL = re.compile(r"nccl\w*Kernel|ncclSymk|ncclDevFunc", re.IGNORECASE)
_COMMUNICATES = re.compile(
    r"nccl|rccl|deep_?ep|nvshmem|cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|a2a|multimem|"
    r"symm(etric)?_mem|barrier|wait_signal|put_signal|flashinfer::comm|trtllm_.*comm|mscclpp|pplx|one_?shot|two_?shot",
    re.IGNORECASE,
)
"""Names of kernels that wait for other GPUs: who runs one may wait in it."""
TOGETHER_S = 1.0
"""Ranks of one node are asked within milliseconds. Who was asked later may have lost its peers by then."""
_STALE_S = 120.0
"""A core that is so much older than the evidence is of another hang."""
_KINDS_SHOWN = 2
_CITED = 4


class RunningKernels:
    def __init__(self, job: Job) -> None:
        captured = job.captured_at_ns
        self.of: dict[int, GpuCore] = {
            core.rank: core
            for core in job.facts.gpu_cores
            if core.rank is not None and not (captured and core.asked_ns and captured - core.asked_ns > _STALE_S * 1e9)
        }
        self._job = job
        self._first_ns = min((core.asked_ns for core in self.of.values() if core.asked_ns is not None), default=None)

    def other(self, rank: int) -> GpuKernel | None:
        """The kernel that a rank's GPU runs, where it runs nothing that may wait for other GPUs."""
        core = self.of.get(rank)
        if core is None or not core.kernels or any(_communicates(kernel) for kernel in core.kernels):
            return None
        return core.kernels[0]

    def in_nccl(self, rank: int) -> bool:
        """Whether a rank's GPU is inside a kernel of NCCL's."""
        core = self.of.get(rank)
        return core is not None and any(_NCCL.search(kernel.title) for kernel in core.kernels)

    def in_one_of_nccl(self, ranks: Collection[int]) -> bool:
        """Whether the GPUs of all these ranks are inside the same kernel of NCCL's."""
        inside = all(self.in_nccl(rank) for rank in ranks)
        return inside and len({self._what(rank) for rank in ranks}) == 1

    def nothing_runs(self, rank: int) -> bool:
        """Whether nothing runs on a rank's GPU, as far as its core can say so."""
        core = self.of.get(rank)
        if core is None or core.kernels or rank in self._failed:
            return False
        late = core.asked_ns is not None and self._first_ns is not None and core.asked_ns - self._first_ns
        return not late or late <= TOGETHER_S * 1e9

    @cached_property
    def _failed(self) -> set[int]:
        """Ranks whose CUDA context is known to have failed: what they run says nothing."""
        facts = self._job.facts
        failed = {report.rank for report in facts.watchdog if report.kind == "cuda_error"}
        lines = [
            line
            for line in facts.failures
            if line.kind in (FailureKind.CUDA_ERROR, FailureKind.XID, FailureKind.GPU_LOST)
        ]
        return failed | {line.rank for line in lines if line.rank is not None}

    def shares_gpu(self, rank: int) -> bool:
        """Whether another rank uses the same GPU: a core may come empty though a kernel waits."""
        process = self._job.processes.get(rank)
        if process is None or process.gpu is None:
            return False
        node = self._job.nodes.get(rank)
        same = [r for r, other in self._job.processes.items() if other.gpu == process.gpu]
        return any(r != rank and self._job.nodes.get(r) == node for r in same)

    def sources(self, ranks: Collection[int]) -> tuple[Source, ...]:
        return tuple(self.of[rank].source for rank in sorted(ranks) if rank in self.of)[:_CITED]

    # ---- in words ----------------------------------------------------------------------------------------------------

    def said_of(self, ranks: Collection[int]) -> str:
        """``rank 2's GPU runs at::cuda::spin_kernel; the other 3 are inside ncclDevKernel_AllReduce``; empty where the
        cores say nothing of these ranks."""
        known = [rank for rank in sorted(ranks) if rank in self.of]
        if not known:
            return ""
        others = [rank for rank in sorted(self.of) if rank not in ranks]
        mine = "; ".join(self._group(known))
        return f"{mine}; {self._rest(others)}" if others else mine

    def said_of_all(self) -> str:
        """The same of a job in which nobody is accused."""
        return self._rest(sorted(self.of), all_of_them=True)

    def _group(self, ranks: list[int]) -> Iterator[str]:
        for what, count in Counter(self._what(rank) for rank in ranks).most_common(_KINDS_SHOWN):
            theirs = [rank for rank in ranks if self._what(rank) == what]
            named = ranks_text(theirs)
            gpus = f"{named}'s GPU" if count == 1 else f"the GPUs of {named}"
            if not what:
                yield f"nothing runs on {gpus}"
            elif any(self.in_nccl(rank) for rank in theirs):
                yield f"{gpus} {verb(theirs, 'is', 'are')} inside {what}"
            else:
                yield f"{gpus} {verb(theirs, 'runs', 'run')} {what}"

    def _rest(self, ranks: list[int], *, all_of_them: bool = False) -> str:
        kinds = Counter(self._what(rank) for rank in ranks).most_common()
        parts = []
        for what, count in kinds[:_KINDS_SHOWN]:
            lead = f"{count} {'GPUs' if all_of_them else 'of the others'}"
            if len(kinds) == 1:
                lead = f"all {count} GPUs" if all_of_them else f"the other {count}" if count > 1 else "the other one"
            are = "is" if count == 1 else "are"
            parts.append(f"{lead} {are} inside {what}" if what else f"{lead} {'runs' if count == 1 else 'run'} nothing")
        more = sum(count for _, count in kinds[_KINDS_SHOWN:])
        return ", ".join([*parts, *([f"{more} in other kernels"] if more else [])])

    def _what(self, rank: int) -> str:
        """The kernel to name: NCCL's where there is one, for the others run beside it."""
        kernels = self.of[rank].kernels
        chosen = next((kernel for kernel in kernels if _NCCL.search(kernel.title)), kernels[0] if kernels else None)
        return chosen.title if chosen is not None else ""


def _communicates(kernel: GpuKernel) -> bool:
    return _COMMUNICATES.search(kernel.name) is not None
