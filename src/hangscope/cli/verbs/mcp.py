"""`hangscope mcp --root DIR…`: the engine as an assistant's tool."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--root",
    "roots",
    metavar="DIR",
    multiple=True,
    required=True,
    type=click.Path(),
    help="A directory that may be read, with all below it; may be given several times.",
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=1, max=3600),
    default=60.0,
    show_default=True,
    help="How long one answer may take.",
)
def command(roots: tuple[str, ...], timeout_s: float) -> int:
    """Answer an assistant's questions by the Model Context Protocol, over standard input and output.

    Six tools, all read-only: diagnose, list_incidents, show_operations, show_stacks, compare_ranks, explain_kind. What
    lies outside every --root is refused, by links too. An assistant starts it itself; its configuration says:

        hangscope mcp --root /shared/hangs
    """
    from hangscope.assistant.confined_paths import real_roots
    from hangscope.assistant.mcp_server import serve

    serve(real_roots(roots), timeout_s)
    return 0
