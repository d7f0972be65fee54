"""A process that posts one alert of a hang, and ends: what to send comes on stdin, what went wrong goes to stderr.

Started by the agent of `run`. Nobody waits for it: the network may hang, the channel may be gone. What it sends is
redacted as a bundle is, and is a few fields of the verdict: no source code, no log, no environment.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from hangscope.bundle.redact.find_secrets import Secrets
from hangscope.cli import otel_event
from hangscope.safeio.safe_files import read_file

SCHEMA = "hangscope.alert/1"
SECONDS = 10.0
TRIES = 3
PAUSE_S = 2.0
_MOST = 4 << 20
_MOST_TOKEN = 1 << 16
_CULPRITS = 16
_TEXT = 600


def main() -> None:
    given = json.loads(sys.stdin.buffer.read(_MOST))
    alert = alert_of(given["verdict"], given["incident"], given.get("job"), given.get("attempt"))
    if given["kind"] == "wandb":  # a rank of the job sends it; here it is only put in words
        sys.stdout.write(json.dumps(wandb(alert)))
        return
    if given["kind"] == "kubeflow":
        problem = post_status(given["address"], kubeflow(alert), given.get("token_file"), given.get("ca_file"))
    elif given["kind"] == "otel":
        problem = otel_event.send(alert, os.environ)
    else:
        problem = post(given["address"], slack(alert) if given["kind"] == "slack" else alert)
    if problem:
        sys.exit(problem)


# ---- what is said ----------------------------------------------------------------------------------------------------


def alert_of(verdict: Mapping[str, Any], incident: str, job: str | None, attempt: str | None) -> dict[str, Any]:
    """The fields of `hangscope.alert/1`, redacted. Unknown values are null; fields are only ever added."""
    culprits = verdict.get("culprits") or []
    value = {
        "schema": SCHEMA,
        "outcome": verdict.get("outcome") or "unknown",
        "kind": verdict.get("kind") or "unknown",
        "confidence": verdict.get("confidence"),
        "headline": verdict.get("headline") or "the job is stalled; no verdict was given",
        "summary": verdict.get("summary"),
        "job": job,
        "attempt": attempt,
        "incident": incident,
        "waiting_s": verdict.get("waiting_s"),
        "culprits": [_culprit(each) for each in culprits[:_CULPRITS]],
        "culprits_count": len(culprits),
        "next_step": next(iter(verdict.get("next_steps") or []), None),
    }
    secrets = Secrets()
    cleaned: dict[str, Any] = {name: _cleaned(each, secrets) for name, each in value.items()}
    return cleaned


def _culprit(culprit: Mapping[str, Any]) -> dict[str, Any]:
    where = culprit.get("where")
    place = {name: where.get(name) for name in ("file", "line", "function")} if isinstance(where, dict) else None
    return {"rank": culprit.get("rank"), "node": culprit.get("node"), "why": culprit.get("why"), "where": place}


def _cleaned(value: Any, secrets: Secrets) -> Any:
    if isinstance(value, str):
        return secrets.clean(value.encode(errors="replace")).decode(errors="replace")[: 4 * _TEXT]
    if isinstance(value, list):
        return [_cleaned(each, secrets) for each in value]
    if isinstance(value, dict):
        return {name: _cleaned(each, secrets) for name, each in value.items()}
    return value


def slack(alert: Mapping[str, Any]) -> dict[str, Any]:
    """As Slack's incoming webhooks take it. What evidence holds can neither link nor call a channel."""
    job = f" in job {_plain(alert['job'])}" if alert["job"] else ""
    lines = [f"*{_plain(alert['outcome']).upper()}*{job}: {_plain(alert['headline'])}"]
    for culprit in alert["culprits"][:4]:
        where = culprit["where"]
        place = f" at {_plain(where['file'])}:{where['line']} in {_plain(where['function'])}" if where else ""
        who = "a process" if culprit["rank"] is None else f"rank {culprit['rank']}"
        lines.append(f"{who} on {_plain(culprit['node'] or 'an unknown node')}{place}")
    if alert["next_step"]:
        lines.append(f"next: {_plain(alert['next_step'])}")
    lines.append(f"confidence: {_plain(alert['confidence'] or 'none')}; evidence: {_plain(alert['incident'])}")
    return {"text": "\n".join(lines)}


def wandb(alert: Mapping[str, Any]) -> dict[str, str]:
    """Title and text of a W&B alert."""
    return {
        "title": f"{str(alert['outcome']).upper()}: {alert['headline']}",
        "text": f"{alert['headline']} (job {alert['job']}, confidence {alert['confidence']}; {alert['incident']})",
    }


def kubeflow(alert: Mapping[str, Any]) -> dict[str, Any]:
    """As the status server of Kubeflow Trainer takes it: metrics with names and values of 64 characters at most."""
    ranks = [str(each["rank"]) for each in alert["culprits"] if each["rank"] is not None]
    said = {
        "outcome": alert["outcome"],
        "kind": alert["kind"],
        "confidence": alert["confidence"],
        "culprits": ",".join(ranks),
        "where": _first_place(alert["culprits"]),
    }
    metrics = [{"name": f"hangscope_{name}", "value": str(value)[:64]} for name, value in said.items() if value]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"trainerStatus": {"metrics": metrics, "lastUpdatedTime": now}}


def _first_place(culprits: Sequence[Mapping[str, Any]]) -> str:
    """The file's own name and line: a whole path may not fit."""
    for culprit in culprits:
        where = culprit["where"]
        if where and where["file"]:
            return f"{str(where['file']).rpartition('/')[2]}:{where['line']}"
    return ""


def _plain(text: object) -> str:
    """Slack's markup begins with these three; `*`, `_` and backticks only change how a word looks."""
    one_line = " ".join(str(text).split())[:_TEXT]
    return one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# ---- sending it ------------------------------------------------------------------------------------------------------


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Elsewhere is not where the user said."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post_status(address: str, body: Mapping[str, Any], token_file: str | None, ca_file: str | None) -> str:
    """Send it with the pod's own token, to a server that the pod's own authority has signed."""
    try:
        token = read_file(token_file, _MOST_TOKEN).decode("ascii").strip() if token_file else ""
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, UnicodeDecodeError) as error:
        return f"the token or certificate of this pod cannot be read: {getattr(error, 'strerror', None) or error}"
    if not token.isprintable() or not token:
        return "this pod has no token for it"
    return post(address, body, urllib.request.HTTPSHandler(context=context), Authorization=f"Bearer {token}")


def post(address: str, body: Mapping[str, Any], *handlers: urllib.request.BaseHandler, **more: str) -> str:
    """Send it, with another try or two where the other side may be better soon. Returns the problem, without the
    address, which is a secret."""
    opener = urllib.request.build_opener(_NoRedirects, *handlers)
    headers = {"Content-Type": "application/json", "User-Agent": "hangscope", **more}
    problem = ""
    for number in range(TRIES):
        if number:
            time.sleep(PAUSE_S * number)
        request = urllib.request.Request(address, json.dumps(body).encode(), headers, method="POST")
        try:
            with opener.open(request, timeout=SECONDS) as answer:
                answer.read(1024)
            return ""
        except urllib.error.HTTPError as error:
            problem = f"the other side answered {error.code}"
            error.close()
            if error.code < 500 and error.code != 429:
                return problem
        except OSError as error:
            reason = getattr(error, "reason", error)
            problem = f"no connection: {getattr(reason, 'strerror', None) or type(reason).__name__}"
        except ValueError:
            return "the address cannot be used"
    return f"{problem} ({TRIES} tries)"
