"""A hang as one event of OpenTelemetry's logs, by its own SDK (the extra `otel`), over OTLP and HTTP.

Where it goes, and with which headers, say OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT and its like).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hangscope.__about__ import __version__
from hangscope.safeio.safe_files import read_file

EVENT = "hangscope.incident"
SECONDS = 10.0
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_WRONG = ("hang", "crash")


def send(alert: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Send it. Returns the problem."""
    try:
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import (
            InMemoryLogRecordExporter,
            LogRecordExportResult,
            SimpleLogRecordProcessor,
        )
        from opentelemetry.sdk.resources import Resource
    except ImportError as error:
        return f"{error.name or error} is missing: pip install 'hangscope[otel]'"
    logging.disable(logging.CRITICAL)  # the exporter's own lines would be the job's
    kept = InMemoryLogRecordExporter()
    provider = LoggerProvider(Resource.create({"service.name": "hangscope", "service.version": __version__}))
    provider.add_log_record_processor(SimpleLogRecordProcessor(kept))
    wrong = alert["outcome"] in _WRONG
    record = LogRecord(
        event_name=EVENT,
        severity_number=SeverityNumber.ERROR if wrong else SeverityNumber.WARN,
        severity_text="ERROR" if wrong else "WARN",
        body=str(alert["headline"]),
        attributes=attributes(alert, environ),
    )
    provider.get_logger("hangscope", __version__).emit(record)
    # Exported by hand: whether it arrived is what we are to say.
    exporter = OTLPLogExporter(timeout=SECONDS)
    try:
        done = exporter.export(kept.get_finished_logs())
    finally:
        exporter.shutdown()
    return "" if done is LogRecordExportResult.SUCCESS else "the collector did not take it"


def attributes(alert: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """By OpenTelemetry's own names where it has one; what is not known is left out."""
    found: dict[str, Any] = {
        "hangscope.outcome": alert["outcome"],
        "hangscope.kind": alert["kind"],
        "hangscope.confidence": alert["confidence"],
        "hangscope.job": alert["job"],
        "hangscope.attempt": alert["attempt"],
        "hangscope.incident": alert["incident"],
        "hangscope.next_step": alert["next_step"],
        "hangscope.culprit.ranks": [each["rank"] for each in alert["culprits"] if each["rank"] is not None] or None,
        "hangscope.culprit.nodes": sorted({each["node"] for each in alert["culprits"] if each["node"]}) or None,
        "slurm.job.id": environ.get("SLURM_JOB_ID"),
        **_kubernetes(environ),
    }
    where = next((each["where"] for each in alert["culprits"] if each["where"]), None)
    if where is not None:
        found["code.file.path"] = where["file"]
        found["code.line.number"] = where["line"]
        found["code.function.name"] = where["function"]
    return {name: value for name, value in found.items() if value not in (None, "")}


def _kubernetes(environ: Mapping[str, str]) -> dict[str, str | None]:
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return {}
    namespace = environ.get("POD_NAMESPACE", "")
    try:
        namespace = namespace or read_file(_NAMESPACE, 1024).decode("ascii", "replace").strip()
    except OSError:
        pass
    return {
        "k8s.pod.name": environ.get("POD_NAME") or environ.get("HANGSCOPE_NODE") or environ.get("HOSTNAME"),
        "k8s.node.name": environ.get("HANGSCOPE_MACHINE") or environ.get("NODE_NAME"),
        "k8s.namespace.name": namespace,
        "k8s.job.name": environ.get("JOB_NAME"),
    }
