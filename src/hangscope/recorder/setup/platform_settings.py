"""What the platform's TaskProlog or SPANK plugin has set in a job's environment, apart from what the job set itself."""

from __future__ import annotations

from collections.abc import Mapping

from hangscope.recorder.setup import blackbox_library

SET_HERE = "HANGSCOPE_PLATFORM"
"""NAME=VALUE pairs with blanks between them (slurm_scripts/task_prolog.sh). No value of them has a blank."""


def without_platform(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment as the job's user made it: a pair that was changed since is the user's."""
    kept = dict(environ)
    pairs = [pair.partition("=") for pair in kept.pop(SET_HERE, "").split()]
    given = {name: value for name, _, value in pairs if environ.get(name) == value}
    for name in given:
        del kept[name]
    if blackbox_library.PLUGIN in given and blackbox_library.NEXT in given:
        kept[blackbox_library.PLUGIN] = given[blackbox_library.NEXT]
    return kept
