"""An AdmissionReview as the API server sends it, and the answer. Every pod is allowed, whatever was asked."""

from __future__ import annotations

import base64
import json
from typing import Any

from hangscope.admission.pod_patch import PatchOptions, patch
from hangscope.errors import HangscopeError, InputError
from hangscope.safeio import bounded_json

MOST_BYTES = 4 << 20
"""The API server takes objects of 3 MiB at most."""
MOST_MEMORY = 64 << 20
_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_LONGEST = 200


def answer(body: bytes, options: PatchOptions) -> bytes:
    """Raises InputError where it is no AdmissionReview; the API server goes on without us then."""
    try:
        value = bounded_json.loads(body, most=MOST_MEMORY)
    except ValueError as error:
        raise InputError(f"not an AdmissionReview: {error}") from None
    request = value.get("request") if isinstance(value, dict) else None
    uid = request.get("uid") if isinstance(request, dict) else None
    if not isinstance(request, dict) or not isinstance(uid, str) or len(uid) > _LONGEST:
        raise InputError("not an AdmissionReview: it has no request with a uid")
    version = value.get("apiVersion")
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    pod = request.get("object")
    kind = request.get("kind")
    if isinstance(pod, dict) and isinstance(kind, dict) and kind.get("kind") == "Pod":
        response |= _patched(pod, options)
    shown = version if version in _VERSIONS else _VERSIONS[0]
    return json.dumps({"apiVersion": shown, "kind": "AdmissionReview", "response": response}).encode()


def _patched(pod: dict[str, Any], options: PatchOptions) -> dict[str, Any]:
    try:
        operations, warnings = patch(pod, options)
    except (HangscopeError, ValueError, TypeError, KeyError, RecursionError):
        return {"warnings": ["hangscope: this pod was left as it is"]}
    found: dict[str, Any] = {"warnings": warnings[:8]} if warnings else {}
    if operations:
        found["patchType"] = "JSONPatch"
        found["patch"] = base64.b64encode(json.dumps(operations).encode()).decode()
    return found
