"""The process that makes the summary of a large project, so that no page waits for it. Its orders come on stdin."""

from __future__ import annotations

import json
import os
import sys
import time

from hangscope.server.history.summary import make
from hangscope.server.store.database import Database

_POLITE = 10


def main() -> None:
    order = json.loads(sys.stdin.read())
    os.nice(_POLITE)
    database = Database(order["database"])
    make(database, order["project"], order["covers"], time.time())
    database.close()
