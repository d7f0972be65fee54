"""A hang as an event of OpenTelemetry: what a collector gets, over OTLP, by the SDK where it is installed."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hangscope.cli import otel_event, post_alert
from hangscope.errors import SettingsError
from hangscope.recorder.alerts.alert_targets import alert_target

VERDICT: dict[str, Any] = {
    "outcome": "hang",
    "kind": "absent",
    "confidence": "high",
    "headline": "rank 1 never launched all_reduce #4, token=hunter2-Secret",
    "culprits": [{"rank": 1, "node": "n1", "why": "w", "where": {"file": "/job/t.py", "line": 8, "function": "load"}}],
    "next_steps": ["look at it"],
}
SLURM = {"SLURM_JOB_ID": "48121"}
POD = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "HOSTNAME": "llm-0-x",
    "HANGSCOPE_MACHINE": "gpu-a",
    "POD_NAMESPACE": "ml",
}


def alert() -> dict[str, Any]:
    return post_alert.alert_of(VERDICT, "/shared/hangs/48121", "48121", "0")


def test_attributes_have_the_fields_own_names() -> None:
    """Job, pod and line by OpenTelemetry's conventions; what is not known is left out, and secrets are."""
    found = otel_event.attributes(alert(), SLURM)
    assert (found["slurm.job.id"], found["hangscope.kind"]) == ("48121", "absent")
    assert (found["code.file.path"], found["code.line.number"], found["code.function.name"]) == ("/job/t.py", 8, "load")
    assert found["hangscope.culprit.ranks"] == [1]
    assert not [name for name in found if name.startswith("k8s.")]
    found = otel_event.attributes(alert(), POD)
    names = ("k8s.pod.name", "k8s.node.name", "k8s.namespace.name")
    assert [found[name] for name in names] == ["llm-0-x", "gpu-a", "ml"]
    assert "slurm.job.id" not in found
    assert "hunter2" not in str(found)


def test_it_needs_an_address() -> None:
    """OpenTelemetry's own variable, or it is a slip that is said at the start."""
    with pytest.raises(SettingsError, match="OTEL_EXPORTER_OTLP_ENDPOINT is not set"):
        alert_target("otel", {})
    target = alert_target("otel", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"})
    assert target is not None
    assert target.name == "otel"


def test_a_collector_gets_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """As OTLP in protobuf, decoded here by OpenTelemetry's own messages; a collector that refuses is a problem."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    got: list[bytes] = []
    statuses = [200, 400]

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(body)
            self.send_response(statuses.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    try:
        assert otel_event.send(alert(), SLURM) == ""
        assert otel_event.send(alert(), SLURM) == "the collector did not take it"
    finally:
        server.shutdown()
        server.server_close()
    sent = ExportLogsServiceRequest.FromString(got[0])
    (record,) = sent.resource_logs[0].scope_logs[0].log_records
    values = {each.key: each.value.string_value for each in record.attributes}
    assert (record.event_name, record.severity_text) == ("hangscope.incident", "ERROR")
    assert (values["slurm.job.id"], values["hangscope.outcome"]) == ("48121", "hang")
    assert "hunter2" not in got[0].decode(errors="replace")
