"""The flight recorder of one rank, as its worker server answers."""

from __future__ import annotations

from hangscope.recorder.capture import (
    flight_recorder,
)


def test_an_unused_recorder_is_not_saved() -> None:
    """A CUDA build answers for NCCL in a job that uses Gloo only."""
    assert flight_recorder.is_empty(b'{"version":"2.10","pg_config":{},"pg_status":{}}')
    assert not flight_recorder.is_empty(b'{"version":"2.10","pg_status":{"0":{}}}')
