"""What is about the commands themselves: `hangscope help COMMAND`, `hangscope completion SHELL`."""

from __future__ import annotations

from collections.abc import Mapping

import click
from click.shell_completion import get_completion_class

from hangscope.cli.output import write

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_HANGSCOPE_COMPLETE"
"""By which the shell asks: click's own name for it."""


@click.command("completion", epilog='Example, in ~/.bashrc: eval "$(hangscope completion bash)"')
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print what makes a shell complete verbs, options and paths.

    The shell reads it when it starts; docs/completion.md has the line for each.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    write(f"{kind(ctx.find_root().command, {}, 'hangscope', _VARIABLE).source()}\n")
    return 0


@click.command("help", add_help_option=False)
@click.argument("verb", required=False)
@click.pass_context
def help_command(ctx: click.Context, verb: str | None) -> None:
    """What a verb does, and what it takes."""
    above = ctx.parent
    assert above is not None
    if verb is None or verb == "help":
        click.echo(above.get_help())
        return
    group = above.command
    assert isinstance(group, click.Group)
    command = group.get_command(above, verb)
    assert command is not None
    with click.Context(command, info_name=verb, parent=above) as shown:
        click.echo(command.get_help(shown))


BUILT_IN: Mapping[str, click.Command] = {"completion": completion, "help": help_command}
