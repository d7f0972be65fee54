"""The causes: one file each, which says what it looks for, on which grounds it accuses, and its words.

A file in one of the folders here is a cause by its `CAUSE`, and nothing else has to know of it. The folders are by what
went wrong; `shared/` is what several causes use. The order in which causes are asked means nothing: `weigh.py` chooses.
"""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from hangscope.diagnosis.cause import Cause
from hangscope.diagnosis.causes import shared
from hangscope.diagnosis.precedence import Precedence

__all__ = ["CAUSES", "CAUSE_OF", "PRECEDENCE"]


def _find() -> Iterator[Cause[Any]]:
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        if not module.ispkg and not module.name.startswith(f"{shared.__name__}."):
            yield import_module(module.name).CAUSE


CAUSES = tuple(_find())
CAUSE_OF = {grounds: cause for cause in CAUSES for grounds in cause.grounds}
PRECEDENCE = Precedence(CAUSE_OF)
