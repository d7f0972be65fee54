"""Saved as nodes/<host>/sites/rank_<r>.json."""

FOLDER = "sites"
KIND = "other"
SCHEMA = "hangscope.sites/1"


def name_of(rank: int) -> str:
    return f"{FOLDER}/rank_{rank}.json"
