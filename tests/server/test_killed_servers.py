"""Servers that are killed while agents push lose nothing and accept nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hangscope.server.serve_process import ServeOptions
from kits.kill_servers import play


def test_a_killed_server_on_sqlite_loses_nothing(tmp_path: Path) -> None:
    """One server, killed while agents push into its file: every answer holds, nothing is half."""
    counted = play(ServeOptions(data=tmp_path), servers=1, agents=6, kills=2, pushes=5)
    assert counted["accepted"] == counted["there"] >= 30


@pytest.mark.postgres
def test_killed_servers_on_postgres_lose_nothing(tmp_path: Path, postgres_server: Any) -> None:
    """Two servers on one Postgres, killed in turn: every answer holds, whichever of them gave it."""
    options = ServeOptions(data=tmp_path, database=postgres_server.database())
    counted = play(options, servers=2, agents=6, kills=3, pushes=5)
    assert counted["accepted"] == counted["there"] >= 30
