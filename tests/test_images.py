"""The images' recipe: small, pinned by who builds it, not root. `make images` builds and tries them with buildah."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECIPE = (ROOT / "containers" / "Containerfile").read_text(encoding="utf-8")


def test_images_run_as_a_user_of_their_own_and_fetch_nothing() -> None:
    """Every stage ends as a user that is not root, the base can be given by digest, and no step asks the network."""
    assert re.findall(r"^FROM (\S+) AS (\w+)", RECIPE, re.MULTILINE) == [
        ("${BASE}", "hangscope"),
        ("${BASE}", "server"),
        ("hangscope", "sidecar"),
    ]
    assert re.findall(r"^USER (\S+)", RECIPE, re.MULTILINE) == ["10001:10001", "10001:10001"]
    assert "hangscope[serve,objectstore]" in RECIPE
    assert "--no-index" in RECIPE
    assert not re.search(r"\b(curl|wget|apt-get|git)\b", RECIPE)


def test_without_buildah_it_is_said() -> None:
    """Where the tools are missing, `make images` says which, and is no failure."""
    command = [sys.executable, str(ROOT / "release" / "images.py")]
    done = subprocess.run(command, env={"PATH": "/nonexistent"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "no image was built: buildah, debootstrap is missing" in done.stdout


def test_chart_and_compose_file_start_what_there_is() -> None:
    """Rendered with its values, with Postgres and without, the chart is YAML that fits together; its options and the
    compose file's are those of `serve`, its probes are answered, and the first token is a secret."""
    yaml = pytest.importorskip("yaml")
    from hangscope.cli.verbs.serve import command

    options = {name for option in command.params for name in option.opts}
    chart = ROOT / "containers" / "chart"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    template = (chart / "templates" / "server.yaml").read_text()
    for more in ({}, {"postgres": True, "blobs": "s3://bucket/x"}):
        given = {**values, **more}
        text = re.sub(
            r"\s*\{\{- if \.Values\.(\w+) \}\}(.*?)\s*\{\{- end \}\}",
            lambda found, given=given: found[2] if given[found[1]] else "",
            template,
            flags=re.DOTALL,
        )
        text = re.sub(r"\{\{ \.Values\.(\w+) \}\}", lambda found, given=given: str(given[found[1]]), text)
        text = text.replace("{{ .Release.Name }}", "hangscope")
        assert "{{" not in text
        deployment, service, claim = yaml.safe_load_all(text)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert {word.partition("=")[0] for word in container["args"]} <= options
        assert any(word.startswith("--first-token-file=") for word in container["args"])
        assert ("env" in container) == given["postgres"]
        assert {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")} == {
            "/livez",
            "/healthz",
        }
        assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
        assert claim["metadata"]["name"] == "hangscope"
    compose = yaml.safe_load((ROOT / "containers" / "compose.yaml").read_text())
    words = compose["services"]["hangscope"]["command"]
    assert {word for word in words if word.startswith("--")} <= options
    assert "first-token" in compose["secrets"]
