"""What webhooks say: JSON with everything, Slack blocks with buttons, alerts that Alertmanager closes again.

An alert's labels are what it is: whoever resolves an issue, or whatever clears a suspect, sends the same labels with an
end. Until then it stands for FIRES_S, and not for the five minutes after which Alertmanager forgets one without an end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, urlencode

FIRES_S = 3 * 86400.0
SAID = {
    "new": "new hang",
    "reopened": "hang is back",
    "again": "hang again",
    "resolved": "resolved",
    "muted": "muted",
    "suspect": "suspect",
    "suspect cleared": "no longer suspect",
    "test": "a test",
}
_MOST_TEXT = 2900
"""Slack takes 3,000 characters in a block."""
_MOST_FIELD = 300
Row = Mapping[str, Any]


def message(
    shape: str,
    event: str,
    incident: Row | None,
    base_url: str,
    *,
    suspect: Row | None = None,
    issue: Row | None = None,
    incidents: Sequence[Row] = (),
    now: float = 0.0,
) -> bytes:
    """The request's body. `incidents` are those of an issue that was resolved or muted: each had an alert."""
    if shape == "slack":
        return json.dumps(_slack(event, incident, suspect, issue, base_url)).encode()
    if shape == "alertmanager":
        if suspect is not None:
            alerts = [_suspect_alert(suspect, base_url, now, is_over=event == "suspect cleared")]
        elif incident is not None:
            alerts = [_hang_alert(incident, base_url, None)]
        else:
            alerts = [_hang_alert(each, base_url, now) for each in incidents]
            alerts = alerts or [
                _alert({"alertname": "HangscopeTest"}, {"summary": SAID["test"]}, now, now + 60, base_url)
            ]
        return json.dumps(_different(alerts)).encode()
    value: dict[str, Any] = {"schema": "hangscope.webhook/1", "event": event, "url": base_url}
    if incident is not None:
        value |= {"url": f"{base_url}/incidents/{incident['id']}", "incident": dict(incident)}
    if suspect is not None:
        value |= {"url": _suspect_url(suspect, base_url), "suspect": dict(suspect)}
    if issue is not None:
        value |= {"url": f"{base_url}/issues/{issue['id']}", "issue": dict(issue)}
    return json.dumps(value).encode()


# ---- Alertmanager ----------------------------------------------------------------------------------------------------


def _hang_alert(incident: Row, base_url: str, ended_at: float | None) -> dict[str, Any]:
    labels = {
        "alertname": "HangscopeIncident",
        "project": incident.get("project") or "",
        "cluster": incident.get("cluster") or "",
        "node": " ".join(_named(incident, "node")[:4]),
        "kind": incident.get("kind") or "unknown",
        "severity": "critical" if incident.get("outcome") in ("hang", "crash", None) else "warning",
        "issue": str(incident.get("issue_id") or ""),
        "fingerprint": incident.get("fingerprint") or "",
    }
    annotations = {
        "summary": incident.get("headline") or "an incident",
        "job": incident.get("job") or "",
        "nodes": " ".join(_named(incident, "node")),
        "ranks": " ".join(_named(incident, "rank")),
        "link": " ".join(_named(incident, "link")),
    }
    at = float(incident["happened_at"])
    end = at + FIRES_S if ended_at is None else ended_at
    return _alert(labels, annotations, at, end, f"{base_url}/incidents/{incident['id']}")


def _suspect_alert(suspect: Row, base_url: str, now: float, *, is_over: bool) -> dict[str, Any]:
    labels = {
        "alertname": "HangscopeSuspect",
        "project": suspect.get("project") or "",
        "cluster": suspect.get("cluster") or "",
        "node": suspect.get("node") or "",
        "kind": suspect["kind"],
        "name": suspect["name"],
        "severity": "warning",
    }
    at = float(suspect.get("since") or now)
    annotations = {"summary": suspect.get("says") or "suspect"}
    return _alert(labels, annotations, at, now if is_over else at + 10 * FIRES_S, _suspect_url(suspect, base_url))


def _alert(labels: Row, annotations: Row, start: float, end: float, link: str) -> dict[str, Any]:
    return {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {name: value for name, value in annotations.items() if value},
        "startsAt": _iso(min(start, end)),
        "endsAt": _iso(end),
        "generatorURL": link,
    }


def _different(alerts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One of those that Alertmanager takes for one: by their labels."""
    return list({json.dumps(each["labels"], sort_keys=True): each for each in alerts}.values())


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat()


# ---- Slack -----------------------------------------------------------------------------------------------------------


def _slack(event: str, incident: Row | None, suspect: Row | None, issue: Row | None, base_url: str) -> dict[str, Any]:
    said = SAID.get(event, event)
    if incident is not None:
        headline = incident.get("headline") or "an incident"
        names = {"job": incident.get("job") or "unknown", "cluster": incident.get("cluster")}
        names |= {kind: ", ".join(_named(incident, kind)) for kind in ("node", "gpu", "link", "nic")}
        buttons = {"open": f"{base_url}/incidents/{incident['id']}"}
        if incident.get("issue_id"):
            buttons["issue"] = f"{base_url}/issues/{incident['issue_id']}"
        node = next((each for each in incident.get("accused") or () if each["kind"] == "node"), None)
        if node is not None:
            buttons["node"] = _node_url(node["name"], node.get("cluster") or "", base_url)
    elif suspect is not None:
        headline = suspect.get("says") or f"{suspect['kind']} {suspect['name']}"
        names = {suspect["kind"]: suspect["name"], "cluster": suspect.get("cluster"), "node": suspect.get("node")}
        buttons = {"look": _suspect_url(suspect, base_url), "suspects": f"{base_url}/suspects"}
    elif issue is not None:
        headline, names = issue["title"], {}
        buttons = {"issue": f"{base_url}/issues/{issue['id']}"}
    else:
        headline, names, buttons = "messages of hangscope arrive here", {}, {"open": base_url}
    first = next(iter(buttons.items()))
    blocks: list[dict[str, Any]] = [_text(f"*{said}*: {_plain(headline)}")]
    fields = [f"*{name}*\n{_plain(value)[:_MOST_FIELD]}" for name, value in names.items() if value]
    if fields:
        blocks.append({"type": "section", "fields": [{"type": "mrkdwn", "text": each} for each in fields[:10]]})
    elements = [
        {"type": "button", "text": {"type": "plain_text", "text": name}, "url": url} for name, url in buttons.items()
    ]
    blocks.append({"type": "actions", "elements": elements})
    job = f" (job {_plain(str(names['job']))})" if names.get("job") else ""
    return {"text": f"*{said}*: {_plain(headline)}{job} <{first[1]}|{first[0]}>"[:_MOST_TEXT], "blocks": blocks}


def _text(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text[:_MOST_TEXT]}}


def _plain(text: str) -> str:
    """Slack reads these three characters as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# ---- both ------------------------------------------------------------------------------------------------------------


def _named(incident: Row, kind: str) -> list[str]:
    return [each["name"] for each in incident.get("accused") or () if each["kind"] == kind]


def _node_url(name: str, cluster: str, base_url: str) -> str:
    return f"{base_url}/nodes/{quote(name, safe='')}{'?' + urlencode({'cluster': cluster}) if cluster else ''}"


def _suspect_url(suspect: Row, base_url: str) -> str:
    node = suspect.get("node")
    return _node_url(node, suspect.get("cluster") or "", base_url) if node else f"{base_url}/suspects"
