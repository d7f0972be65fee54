"""The questions to a rank's worker server whose answer is the whole ring of one of its flight recorders."""

from __future__ import annotations

from collections.abc import Iterator

from hangscope.recorder.live.find_ranks import RankProcess

MOST_MEMORY = 320 << 20
"""For one answer, parsed: a ring of 90,000 operations."""


def recorders(process: RankProcess) -> Iterator[tuple[str, str]]:
    """(backend, question) for every recorder that this rank may have, in its form without stacks.

    CUDA builds have `dump_nccl_trace_pickle` from 2.4 on. `fr_trace_json` (2.10) is Gloo's; 2.15 also answers for
    nccl2, and an older torch ignores the parameter, which is why nccl2 is asked only where `fr_dump_file` (2.15) is.
    """
    if "dump_nccl_trace_pickle" in process.handlers:
        yield "nccl", "dump_nccl_trace_pickle?includestacktraces=false"
    if "fr_trace_json" in process.handlers:
        yield "gloo", "fr_trace_json"
        if "fr_dump_file" in process.handlers:
            yield "nccl2", "fr_trace_json?backend=nccl2"


def json_question(backend: str) -> str:
    """The question whose answer is the whole ring as JSON."""
    return {"nccl": "dump_nccl_trace_json", "gloo": "fr_trace_json"}.get(backend, f"fr_trace_json?backend={backend}")
