"""Names of machines as history compares them: with their cluster where there are several, and as of before a repair."""

from __future__ import annotations

ARROW = " -> "
_IN = " in cluster "
_BEFORE = " before its repair"


def qualified(name: str, cluster: str) -> str:
    return f"{name}{_IN}{cluster}" if cluster else name


def before_repair(label: str) -> str:
    return label + _BEFORE


def is_past(label: str) -> bool:
    """Whether it is what a machine was before its repair: nobody can do anything about that any more."""
    return label.endswith(_BEFORE)


def apart(label: str) -> tuple[str, str]:
    """The name and the cluster of a label; the latter is empty where it is not in it."""
    name, found, cluster = label.removesuffix(_BEFORE).rpartition(_IN)
    return (name, cluster) if found else (cluster, "")


def ends(link: str) -> list[str]:
    """The labels of a link's nodes."""
    was = is_past(link)
    name, cluster = apart(link)
    labels = [qualified(end, cluster) for end in name.split(ARROW)]
    return [before_repair(each) for each in labels] if was else labels
