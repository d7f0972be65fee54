"""Connecting to a Ray cluster that runs, as a driver that asks for nothing but tasks without resources."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from hangscope.errors import SettingsError

THIS_MACHINES = "auto"
"""The cluster of RAY_ADDRESS, or else the one that was started on this machine."""
_WAIT_S = "15"
_QUICKLY = {"RAY_gcs_rpc_server_reconnect_timeout_s": _WAIT_S, "RAY_gcs_server_request_timeout_seconds": _WAIT_S}
"""How long Ray itself tries where nobody answers: a minute by default."""
_LISTENS_S = 10.0
_PLACE = re.compile(r"(?:ray://)?(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})(?:/.*)?")
_VERSIONS = re.compile(r"(?:Ray|Python): (\S+)")


def installed_ray() -> Any:
    try:
        return import_module("ray")
    except ImportError:
        raise SettingsError(
            "--ray needs Ray, which is not installed here",
            hint="pip install 'hangscope[ray]' with the cluster's version of Ray, or run it with the cluster's Python",
        ) from None


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module `ray`, connected; disconnected afterwards. Nothing of the cluster is changed."""
    for name, value in _QUICKLY.items():
        os.environ.setdefault(name, value)
    ray = installed_ray()
    if ray.is_initialized():
        yield ray
        return
    _check_listens(address if address != THIS_MACHINES else os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, logging_level="ERROR")
    except Exception as error:
        raise _refused(address, error) from None
    try:
        yield ray
    finally:
        with _silent_output():
            ray.shutdown()


def _check_listens(address: str) -> None:
    """Whether anything listens there: Ray's own client ends this process, silently, where nothing does."""
    match = _PLACE.fullmatch(address)
    if match is None:
        return
    try:
        socket.create_connection((match["host"], int(match["port"])), timeout=_LISTENS_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _refused(address, error) from None


def _refused(address: str, error: Exception) -> SettingsError:
    words = " ".join(str(error).split())
    if "Version mismatch" in words or "version mismatch" in words.lower():
        theirs, ours = (_VERSIONS.findall(words)[at : at + 2] for at in (0, 2))
        has = f"Ray {theirs[0]} and Python {theirs[1]}" if len(theirs) == 2 else "another Ray or Python"
        own = f"Ray {ours[0]} and Python {ours[1]}" if len(ours) == 2 else f"Python {sys.version.split()[0]}"
        return SettingsError(
            f"the cluster at {address} has {has}, this machine {own}: Ray connects only the same",
            hint="run hangscope with the cluster's own Python, on one of its nodes: pip install hangscope there",
        )
    where = "on this machine" if address == THIS_MACHINES else f"at {address}"
    return SettingsError(
        f"no Ray cluster answers {where}: {words[:300]}",
        hint="`ray status` says whether it runs; give its address (HOST:6379, or ray://HOST:10001) or set RAY_ADDRESS;"
        " without a cluster: hangscope diagnose SESSION/logs",
    )


@contextlib.contextmanager
def _silent_output() -> Iterator[None]:
    """Ray's C++ side writes its complaints to stderr itself: what is wrong is said once, by us."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
