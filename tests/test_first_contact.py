"""What strangers meet first: issue forms that ask for what a fix needs, and the policies that they link to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def fields(form: Path) -> dict[str, dict[str, Any]]:
    """The questions of a form, by id."""
    value = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(value)
    return {part["id"]: part for part in value["body"] if part["type"] != "markdown"}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_is_one(form: Path) -> None:
    """Every question has a kind that forms know, an id of its own and a label; something is required."""
    found = fields(form)
    assert all(part["type"] in ("textarea", "input", "checkboxes", "dropdown") for part in found.values())
    assert all(part["attributes"]["label"] for part in found.values())
    assert any(part.get("validations", {}).get("required") for part in found.values())


def test_a_wrong_verdict_comes_with_its_bundle() -> None:
    """A report of a wrong verdict asks for verdict, truth and bundle, and whether it may become a test."""
    found = fields(ROOT / ".github" / "ISSUE_TEMPLATE" / "wrong-verdict.yml")
    required = {name for name, part in found.items() if part.get("validations", {}).get("required")}
    assert required == {"verdict", "truth", "bundle"}
    assert "hangscope bundle" in found["bundle"]["attributes"]["description"]
    assert "corpus" in found


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "ROADMAP.md"])
def test_policies_are_linked_from_contributing(name: str) -> None:
    """Security policy, code of conduct and roadmap are there, and CONTRIBUTING leads to them."""
    assert (ROOT / name).is_file()
    assert f"]({name})" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
