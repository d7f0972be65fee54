"""`hangscope completion SHELL`: what makes a shell complete verbs and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from hangscope.cli.output import write

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_HANGSCOPE_COMPLETE"
"""By which the shell asks: click's own name for it."""


@click.command(epilog='Example, in ~/.bashrc: eval "$(hangscope completion bash)"')
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> int:
    """Print what makes a shell complete verbs, options and paths.

    The shell reads it when it starts; docs/completion.md has the line for each.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    write(f"{kind(ctx.find_root().command, {}, 'hangscope', _VARIABLE).source()}\n")
    return 0
