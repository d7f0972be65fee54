"""Saved as nodes/<host>/stacks/rank_<r>.<n>.calls.json, beside the stack whose calls they are."""

SCHEMA = "hangscope.calls/1"


def name_of(rank: int | None, sample: int) -> str:
    return f"stacks/rank_{rank}.{sample}.calls.json"
