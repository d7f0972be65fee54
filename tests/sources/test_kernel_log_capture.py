"""Kernel messages since the job started."""

from __future__ import annotations

from hangscope.sources.kernel_log import capture as kernel_messages


def test_kernel_messages_have_a_time_or_a_reason() -> None:
    """Either lines that start with a time of day, or why they cannot be read."""
    text, why = kernel_messages.messages(0.0)
    assert (text is None) == bool(why)
    if text:
        assert text.startswith("20")
