"""What a page holds for its script."""

from __future__ import annotations

import json
import re
from typing import Any


def data_of(page: str) -> dict[str, Any]:
    """What the script is given."""
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert block is not None
    value: dict[str, Any] = json.loads(block[1])
    return value
