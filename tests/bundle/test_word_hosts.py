"""Hosts whose names are words: with aliases no place names them, and no word that is no name is changed."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import hangscope
from hangscope.bundle.aliases import Aliases
from hangscope.bundle.redact.learn_names import hosts_in
from hangscope.bundle.unpack import extract
from hangscope.cli.main import main
from hangscope.report.export import to_dict
from hangscope.report.page.render_page import render_page
from hangscope.report.terminal import render_text
from hangscope.report.ticket import render_ticket

INCIDENT = Path(__file__).parents[1] / "incidents/stop"
WORDS = ("at", "a", "node", "vm", "next", "gpu")


def _incident(root: Path, host: str) -> None:
    """A recorded incident, as if its first node had that name, with the reports that `run` writes."""
    shutil.copytree(INCIDENT, root)
    shutil.move(root / "nodes/gpu-worker-6", root / "nodes" / host)
    for path in [path for path in root.rglob("*") if path.is_file()]:
        raw = path.read_bytes()
        if b"\0" not in raw:
            path.write_bytes(raw.replace(b"gpu-worker-6", host.encode()))
        if "gpu-worker-6" in path.name:
            path.rename(path.with_name(path.name.replace("gpu-worker-6", host)))
    job = hangscope.load(root)
    found = hangscope.diagnose(job)
    (root / "verdict.html").write_text(render_page(found, job))
    (root / "verdict.txt").write_text(render_text(found))
    (root / "ticket.md").write_text(render_ticket(found, job, files={}))


def _keys(value: Any) -> Any:
    """A JSON value's keys, all the way down."""
    if isinstance(value, dict):
        return {key: _keys(item) for key, item in value.items() if key != "files"}
    return [_keys(item) for item in value] if isinstance(value, list) else None


def _is_named(host: str, text: str) -> list[str]:
    """Where a host of that name is named: in a path, a prefix, a field, a list or a sentence."""
    word = re.escape(host)
    return re.findall(
        rf"nodes/{word}(?![\w-]).{{0,20}}|\b{word}:\d+:\d+|\"(?:node|host|by)\": ?\"{word}\"|^\s*\"{word}\",?$"
        rf"|HOSTNAME=\W?{word}(?![\w-])|nccl\.{word}\.\d+|rank \d+ on {word}(?![\w-])|\(node {word}\)|node {word},",
        text,
        re.MULTILINE,
    )


def _words_left(out: Path, host: str) -> list[str]:
    texts = [path.read_bytes().decode("utf-8", "replace") for path in out.rglob("*") if path.is_file()]
    return [line for text in texts for line in re.findall(rf"(?m)^.*(?<![\w-]){host}(?![\w-]).*$", text)]


class _Tags(html.parser.HTMLParser):
    """The tags of a page, and the words of its headings."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.headings: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in ("h1", "h2", "h3", "script"):
            self.headings.append(data)


@pytest.mark.parametrize("options", [(), ("--all-lines",)], ids=["default", "all lines"])
@pytest.mark.parametrize("host", WORDS)
def test_a_word_is_replaced_where_it_is_a_name_and_nowhere_else(
    host: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    """JSON has the keys that it had, the page its tags and the ticket its headings; no place names the host."""
    root = tmp_path / "in"
    _incident(root, host)
    target = tmp_path / "x.tar.gz"
    assert main(["bundle", str(root), "-o", str(target), "--pseudonymise", *options]) == 0
    out = tmp_path / "out"
    extract(target, out)
    aliases = json.loads((tmp_path / "x.aliases.json").read_text())["hosts"]
    node = out / "nodes" / aliases[host]
    if host == "vm":  # no other word of this incident
        assert _words_left(out, host) == []
    for before, after in (
        (root / f"nodes/{host}/node.json", node / "node.json"),
        (root / "run.json", out / "run.json"),
    ):
        assert _keys(json.loads(after.read_text())) == _keys(json.loads(before.read_text()))
    verdict = json.loads((out / "verdict.json").read_text())
    truth = to_dict(hangscope.diagnose(hangscope.load(root)))
    assert _keys(verdict) == _keys(truth)
    assert [one["node"] for one in verdict["culprits"]] == [aliases[one["node"]] for one in truth["culprits"]]
    headings = [re.findall("(?m)^#.*", (where / "ticket.md").read_text()) for where in (root, out)]
    assert headings[1] == [*headings[0], "## Attached files"]
    before_page = _Tags((root / "verdict.html").read_text())
    after_page = _Tags((out / "verdict.html").read_text())
    assert after_page.tags == before_page.tags
    for path in out.rglob("*"):
        text = path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
        assert _is_named(host, f"{path.relative_to(out)}\n{text}") == [], path


def test_a_word_is_no_host_because_a_sentence_or_a_page_has_it() -> None:
    """Names are learnt from prefixes and variables; of other places only those that are no word."""
    assert hosts_in(b'<p>host : at</p> "node": "next", tcp://vm:1 see (node, 29500) [gpu]:29500 a<123>') == set()
    assert hosts_in(b"vm:1:2 [0] NCCL INFO x\nHOSTNAME=a\nSLURM_JOB_NODELIST=at,next") == {"vm", "a", "at", "next"}


@pytest.mark.parametrize(
    "text",
    [
        b'{"at": 1, "next": {"node": "linear"}, "a": "at"}',
        b"## Next steps",
        b'<a at="next">node</a> a.next(at)',
        b"for node in gpu: next(a) at 3",
    ],
)
def test_words_in_keys_markup_code_and_headings_stay(text: bytes) -> None:
    """What is a host's name elsewhere is a word here."""
    assert Aliases(WORDS).clean(text) is text
