"""Lines that may be evidence are kept as they are, in bounded memory, and both ends of a long one."""

from __future__ import annotations

from hangscope.reader.logs.quoted_lines import KEPT_AT_EACH_END, LONGEST, QuotedLines


def test_of_a_long_line_both_ends_are_kept() -> None:
    """What differs often stands last: `Op type: ALLREDUCEvs BROADCAST`."""
    lines = QuotedLines()
    lines.add(3, "Rank 1 is running collective" + " x" * LONGEST + " Op type: ALLREDUCEvs BROADCAST")
    kept = lines.line(3)
    assert kept is not None and len(kept) < LONGEST + 10
    assert kept.startswith("Rank 1 is running") and kept.endswith("Op type: ALLREDUCEvs BROADCAST")


def test_of_a_flood_the_first_and_the_last_are_kept() -> None:
    """Memory is bounded, and the beginning and the end can still be shown."""
    lines = QuotedLines()
    for number in range(10 * KEPT_AT_EACH_END):
        lines.add(number, f"  line {number}  ")
    assert lines.line(0) == "line 0"
    assert lines.line(10 * KEPT_AT_EACH_END - 1) == f"line {10 * KEPT_AT_EACH_END - 1}"
    assert lines.line(5 * KEPT_AT_EACH_END) is None
    assert lines.line(None) is None
