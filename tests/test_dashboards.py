"""Alert rules and dashboards in docs/monitoring: their metrics are those that run, agent and serve give."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hangscope.recorder.agent.metrics import Numbers, render
from hangscope.recorder.launch import watch_node
from hangscope.server.web import feeds

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
MONITORING = ROOT / "docs" / "monitoring"
RULES = MONITORING / "alerts.yaml"
BOARDS = sorted(MONITORING.glob("grafana-*.json"))
NAME = re.compile(r"\bhangscope_[a-z_]+")


def exported() -> set[str]:
    """What a job's agent renders, and the names that the node agent and the server write."""
    numbers = Numbers(incidents={"stall": 1}, verdicts={("hang", "absent"): 1})
    found = set(NAME.findall(render(numbers, {"job": "j", "attempt": "0", "node": "n"})))
    for module in (watch_node, feeds):
        found |= set(re.findall(r"# TYPE (hangscope_[a-z_]+) ", Path(str(module.__file__)).read_text()))
    return found


def expressions(board: dict[str, Any]) -> list[str]:
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return found + [each["definition"] for each in board["templating"]["list"] if "definition" in each]


def test_every_metric_in_rules_and_dashboards_exists() -> None:
    """And every metric that is exported is on a dashboard, so that none is forgotten."""
    there = exported()
    rules = [rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    boards = [each for file in BOARDS for each in expressions(json.loads(file.read_text()))]
    for expression in (*rules, *boards):
        named = set(NAME.findall(expression))
        assert named, expression
        assert named <= there, expression
    assert {name for each in boards for name in NAME.findall(each)} == there


def test_every_rule_is_tried_by_the_rules_own_tests() -> None:
    """alerts-test.yaml has each alert fire, with its words."""
    names = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    (trial,) = yaml.safe_load((MONITORING / "alerts-test.yaml").read_text())["tests"]
    assert {each["alertname"] for each in trial["alert_rule_test"] if each["exp_alerts"]} == names
    page = (ROOT / "docs" / "dashboards.md").read_text()
    assert all(f"`{name}`" in page for name in names)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is in Debian's package prometheus")
@pytest.mark.parametrize("words", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts-test.yaml")])
def test_prometheus_takes_the_rules_and_they_fire_when_they_should(words: tuple[str, ...]) -> None:
    """By promtool: a stalled job fires, a healthy one and one that is over do not."""
    done = subprocess.run(["promtool", *words], cwd=MONITORING, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is in Debian's package prometheus")
def test_prometheus_takes_every_expression_of_the_dashboards(tmp_path: Path) -> None:
    """Grafana's variables filled in."""
    rows = [each for file in BOARDS for each in expressions(json.loads(file.read_text())) if "label_values" not in each]
    filled = [each.replace("$job", ".*").replace("$node", ".*") for each in rows]
    rules = [{"record": f"r{number}", "expr": each} for number, each in enumerate(filled)]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboards_can_be_imported() -> None:
    """Each panel has its place, a source that the importer chooses, and a number of its own."""
    for file in BOARDS:
        board = json.loads(file.read_text())
        assert board["uid"] == f"hangscope-{file.stem.partition('-')[2]}"
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        for panel in board["panels"]:
            assert panel["datasource"]["uid"] == "${datasource}"
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
