"""The agent's numbers for Prometheus, from a file and from a port."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path

import pytest

from hangscope.errors import SettingsError
from hangscope.recorder.agent.metrics import Metrics, Numbers, escape, render

LINE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)')


def parsed(text: str) -> dict[str, float]:
    """By the rules of the format: every line a comment or a sample, every family announced before its samples."""
    found, announced = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            announced.add(line.split()[2])
        elif not line.startswith("# HELP "):
            match = LINE.fullmatch(line)
            assert match is not None, line
            assert match[1] in announced
            found[match[1]] = float(match[3])
    return found


def test_the_metrics_are_what_prometheus_reads_whatever_the_names_are() -> None:
    """A job's name may hold quotes, backslashes, line feeds and bytes that are no UTF-8."""
    labels = {"job": 'a"b\\c\nd\udcff', "attempt": "0", "node": "n"}
    numbers = Numbers(8, 7, 1, 3, 1794753517.5, 12.25, 30.0, {"stall": 2}, {("hang", "absent"): 1}, 1, False)
    text = render(numbers, labels)
    found = parsed(text)
    assert found["hangscope_ranks_watched"] == 7
    assert found["hangscope_last_progress_timestamp_seconds"] == 1794753517.5
    assert (found["hangscope_stalls_total"], found["hangscope_pauses_total"]) == (2, 1)
    assert 'job="a\\"b\\\\c\\nd?"' in text
    assert escape("plain") == "plain"
    assert parsed(render(Numbers(), labels))["hangscope_ranks_watched"] == 0


def test_the_metrics_can_be_had_from_a_port_and_a_folder(tmp_path: Path) -> None:
    """The port is this machine's own; the file has its name from the job and goes with it."""
    metrics = Metrics({"job": "j/1", "attempt": "0", "node": "n"}, file=tmp_path, port="0")
    metrics.publish(Numbers(watched=4))
    host, port = metrics.address or ("", 0)
    assert host == "127.0.0.1"
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
        assert parsed(answer.read().decode())["hangscope_ranks_watched"] == 4
    assert (tmp_path / "hangscope-j-1-0-n.prom").read_text().startswith("# HELP hangscope_info")
    with socket.create_connection((host, port)):  # a client that asks for nothing keeps nobody
        metrics.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SettingsError, match="--metrics-port http: no port"):
        Metrics({}, port="http")
