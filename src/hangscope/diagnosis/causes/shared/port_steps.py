"""What to look at where bytes do not arrive: the ends of a connection, or all ports of some ranks' nodes."""

from collections.abc import Iterable

from hangscope.diagnosis.case import Case
from hangscope.diagnosis.hardware import port_commands
from hangscope.diagnosis.hardware.nccl_rings import Way


def link_steps(case: Case, way: Way | None) -> list[str]:
    return port_commands.steps(case.ports.path(way), case.ports.suspects) if way is not None else []


def ports_step(case: Case, ranks: Iterable[int]) -> str:
    return port_commands.look_at({case.job.nodes[r] for r in ranks if r in case.job.nodes})
