"""Black boxes of real NCCL jobs in which one thing was made to go wrong: links that stopped, ranks that did.

`recorded_links.tar.xz` holds a choice of what tests/record/record_links.py brought back from an H200 (torch 2.11.0,
NCCL 2.28.9, several ranks on one GPU over loopback sockets): the boxes as captured, and the injected truth.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from frozen import diagnosis, files_of, injected, names
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.waits.proxy_waits import NotKnown, StuckLink, in_short, root
from hangscope.model import BlackBox, Source
from hangscope.sources.black_box import read as blackbox_file

ARCHIVE = "recorded_links.tar.xz"
WORDS = {"absent": "absent", "gpu": "gpu", "frozen": "silent", "dead": "silent"}


@cache
def recorded(case: str) -> tuple[dict[str, Any], tuple[BlackBox, ...]]:
    """(what was injected, the boxes)."""
    boxes = {name: data for name, data in files_of(ARCHIVE, case).items() if not name.endswith("truth.json")}
    return injected(ARCHIVE, case), tuple(blackbox_file.read_box(data, Source(name))[0] for name, data in boxes.items())


def expected(truth: dict[str, Any]) -> str:
    if truth.get("link"):
        return "link {}>{}".format(*truth["link"])
    return f"{WORDS[truth['kind']]} {truth['culprits'][0]}"


@pytest.mark.parametrize("case", names("links"))
def test_the_root_is_what_was_injected(case: str) -> None:
    """From the boxes alone, the link or the rank that was made to fail is named."""
    truth, boxes = recorded(case)
    assert len(boxes) == truth["world_size"]
    found = root(boxes)
    assert in_short(found) == expected(truth)
    if isinstance(found, StuckLink):
        assert found.both_ran is Says.YES


@pytest.mark.parametrize("case", names("links"))
def test_a_missing_box_accuses_nobody_else(case: str) -> None:
    """Without the box of any one rank the answer is the same, or that it is not known."""
    truth, boxes = recorded(case)
    for gone in boxes:
        found = root([box for box in boxes if box is not gone])
        assert isinstance(found, NotKnown) or in_short(found) == expected(truth), gone.rank


@pytest.mark.parametrize("case", names("links"))
def test_the_order_of_the_files_does_not_matter(case: str) -> None:
    """The boxes may be read in any order."""
    _, boxes = recorded(case)
    assert root(boxes) == root(boxes[::-1])


@pytest.mark.parametrize("case", names("links"))
def test_a_folder_of_boxes_alone_names_the_link(case: str) -> None:
    """Through reader and diagnosis, with no dump and no log: the link, or the rank and its kind."""
    truth, verdict = injected(ARCHIVE, case), diagnosis("links", case)
    if truth.get("link"):
        assert verdict.link is not None
        assert [verdict.link.sender.rank, verdict.link.receiver.rank] == truth["link"]
        assert (verdict.kind, verdict.confidence) == ("network", "high")
    else:
        kinds = ("dead", "frozen") if truth["kind"] in ("dead", "frozen") else (truth["kind"],)
        assert [culprit.rank for culprit in verdict.culprits] == truth["culprits"]
        assert verdict.kind in kinds
    assert verdict.outcome == "hang"
