"""Sends the alerts of a hang. Starting them takes milliseconds; whether they arrived is said once, when it is known."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hangscope.errors import SettingsError
from hangscope.processes.isolated_python import clean_environment, helper_command
from hangscope.recorder.alerts import wandb_alert
from hangscope.recorder.alerts.alert_targets import KUBEFLOW, WANDB, AlertTarget
from hangscope.recorder.live.watched_rank import WatchedRank

SENDER = "hangscope.cli.post_alert"
"""A process of its own: redaction is not for the recorder's room, and a network that hangs is not for the agent."""
SENT_S = 90.0
STATUS_TOKEN = "KUBEFLOW_TRAINER_STATUS_TOKEN"
STATUS_CA = "KUBEFLOW_TRAINER_STATUS_CA_CERT"
"""The files in a TrainJob's pod that hold the token, which is renewed, and who signed the server's certificate."""


class Alerts:
    """What went wrong with a target is said once, however many hangs there are."""

    def __init__(self, targets: Sequence[AlertTarget], *, wandb: bool, say: Callable[[str], None]) -> None:
        self._targets = tuple(targets)
        self._wandb = wandb
        self._say = say
        self._said: set[str] = set()

    def send(
        self, incident: Path, verdict: Mapping[str, Any], about: Mapping[str, str], ranks: Sequence[WatchedRank]
    ) -> list[threading.Thread]:
        """Start every alert; returns at once. `about` is the job's name and attempt."""
        alert = {"incident": str(incident), "verdict": verdict, **about}
        started = [self._start(target.name, _post, target, alert) for target in self._targets]
        if self._wandb:
            started.append(self._start(WANDB, _by_wandb, list(ranks), alert))
        return started

    def _start(self, name: str, send: Callable[..., str], *given: Any) -> threading.Thread:
        def run() -> None:
            try:
                problem = send(*given)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if problem and name not in self._said:
                self._said.add(name)
                self._say(f"warning: --on-hang {name}: {problem}")

        thread = threading.Thread(target=run, name=f"alert {name}", daemon=True)
        thread.start()
        return thread


def _post(target: AlertTarget, alert: Mapping[str, Any]) -> str:
    """Have it posted. Returns the problem."""
    try:
        address = target.address(os.environ)
    except SettingsError as error:
        return str(error)
    given = {"kind": target.kind, "address": address, **alert}
    if target.kind == KUBEFLOW:
        given |= {"token_file": os.environ.get(STATUS_TOKEN, ""), "ca_file": os.environ.get(STATUS_CA, "")}
    _, problem = _process(given)
    return problem


def _by_wandb(ranks: Sequence[WatchedRank], alert: Mapping[str, Any]) -> str:
    said, problem = _process({"kind": WANDB, **alert})
    words = wandb_alert.as_object(said)
    return problem or wandb_alert.send(ranks, str(words.get("title")), str(words.get("text")))


def _process(given: Mapping[str, Any]) -> tuple[bytes, str]:
    """Run the sender; what it printed, and the problem. An address goes to it on stdin, as all the rest does."""
    process = subprocess.Popen(
        helper_command(SENDER),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(os.environ),
        start_new_session=True,  # it outlives us: a job that is ended now is what people want to know of
    )
    try:
        out, said = process.communicate(json.dumps(given).encode(), timeout=SENT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return b"", f"not sent within {SENT_S:g} s"
    if process.returncode == 0:
        return out, ""
    last = said.decode(errors="replace").strip().splitlines()[-1:]
    return b"", last[0][:300] if last else f"not sent (status {process.returncode})"
