"""Evidence as it comes from the wild: folders that mislead, with the truth that an expert would state.

`folder` says how one is written down; each other module holds the scenes of one kind of evidence.
"""

from __future__ import annotations

from functools import cache

from kits.wild import dumps, logs, mixed, records
from kits.wild.folder import Folder, scenes


@cache
def folders() -> dict[str, Folder]:
    """All of them, by name."""
    found = [folder for module in (dumps, logs, mixed, records) for made in scenes(module) for folder in made()]
    assert len({folder.name for folder in found}) == len(found), "two folders have one name"
    return {folder.name: folder for folder in found}
