"""`--on-hang slack:…`, `webhook:…` and `wandb`: where alerts go.

Such an address is a secret: whoever has it can write to the channel. So it is read from a file or a variable, is never
a word of the command line, which everybody on the machine can read, and is in no message of ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hangscope.errors import SettingsError
from hangscope.safeio.safe_files import read_file

WANDB = "wandb"
OTEL = "otel"
OTLP_URLS = ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
KUBEFLOW = "kubeflow"
STATUS_URL = "KUBEFLOW_TRAINER_STATUS_URL"
"""Where the pods of a TrainJob send their progress to: Kubeflow Trainer 2.2 and newer, with its gate TrainJobStatus."""
_ALERT = re.compile(r"(slack|webhook):(.*)", re.DOTALL)
_VARIABLE = "env:"
_LONGEST = 4096
_HOW = "slack:FILE, whose first line is the address, or slack:env:NAME for a variable that holds it"


@dataclass(frozen=True, slots=True)
class AlertTarget:
    """`kind` is "slack", "webhook", "kubeflow" or "otel"; the address is in a file, or else in a variable."""

    kind: str
    file: Path | None = None
    variable: str = ""

    @property
    def name(self) -> str:
        """As the user wrote it."""
        if self.kind in (KUBEFLOW, OTEL):
            return self.kind
        return f"{self.kind}:{self.file if self.file is not None else _VARIABLE + self.variable}"

    def address(self, environ: Mapping[str, str]) -> str:
        """The address as it is now. Raises SettingsError where there is none, without a word of what is there."""
        if self.file is None:
            text = environ.get(self.variable, "")
        else:
            try:
                text = read_file(self.file, _LONGEST).decode(errors="replace")
            except OSError as error:
                raise SettingsError(f"--on-hang {self.name}: {error.strerror or error}", hint=_HOW) from None
        lines = text.strip().splitlines()
        if not lines or not _is_address(lines[0].strip()):
            what = "the variable is not set, or holds" if self.file is None else "the file holds"
            raise SettingsError(f"--on-hang {self.name}: {what} no http:// or https:// address", hint=_HOW)
        return lines[0].strip()


def alert_target(word: str, environ: Mapping[str, str]) -> AlertTarget | None:
    """What a word of `--on-hang` names; None where it is no alert. A slip is found now, and not at the hang."""
    if word == OTEL:
        named = next((name for name in OTLP_URLS if _is_address(environ.get(name, ""))), None)
        if named is None:
            raise SettingsError(
                f"--on-hang {OTEL}: {OTLP_URLS[1]} is not set", hint="for example http://collector:4318, OTLP over HTTP"
            )
        return AlertTarget(OTEL, variable=named)
    if word == KUBEFLOW:
        if not _is_address(environ.get(STATUS_URL, "")):
            raise SettingsError(
                f"--on-hang {KUBEFLOW}: {STATUS_URL} is not set",
                hint="Kubeflow Trainer sets it in a TrainJob's pods, where its feature gate TrainJobStatus is on",
            )
        return AlertTarget(KUBEFLOW, variable=STATUS_URL)
    match = _ALERT.fullmatch(word)
    if match is None:
        return None
    kind, place = match.groups()
    if "://" in place:
        raise SettingsError(
            f"--on-hang {kind}: an address on the command line can be read by everyone on this machine", hint=_HOW
        )
    if not place.strip():
        raise SettingsError(f"--on-hang {kind}: without a file", hint=_HOW)
    if place.startswith(_VARIABLE):
        target = AlertTarget(kind, variable=place.removeprefix(_VARIABLE))
    else:
        target = AlertTarget(kind, Path(os.path.abspath(os.path.expanduser(place))))
    target.address(environ)
    return target


def _is_address(text: str) -> bool:
    if not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
