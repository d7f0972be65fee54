"""What the command line takes, read from the code: for the docs' reference and for man pages."""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import dataclass

import click

from hangscope.cli.main import VERBS, Verbs, cli


@dataclass(frozen=True)
class Verb:
    """One verb. A paragraph that is indented is an example, or a table, and is kept as it is."""

    name: str
    line: str
    usage: str
    paragraphs: tuple[str, ...]
    options: tuple[tuple[str, str], ...]


def verbs() -> list[Verb]:
    assert isinstance(cli, Verbs)
    top = click.Context(cli, info_name="hangscope")
    found = []
    for name in cli.list_commands(top):
        command = cli.get_command(top, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=top)
        records = [param.get_help_record(context) for param in command.get_params(context)]
        text = inspect.cleandoc((command.help or "").partition("\f")[0]).replace("\b\n", "")
        usage = f"hangscope {name} {' '.join(command.collect_usage_pieces(context))}"
        options = tuple(record for record in records if record is not None)
        found.append(Verb(name, VERBS[name], usage, paragraphs(text), options))
    return found


def paragraphs(text: str) -> tuple[str, ...]:
    """The paragraphs of a help text. Lines that are indented are one of their own: an example, by four columns."""
    apart = re.sub(r"^(\S.*)\n(?=  )", r"\1\n\n", text, flags=re.MULTILINE)
    found = []
    for part in apart.split("\n\n"):
        indented = part.startswith("  ")
        found.append(textwrap.indent(textwrap.dedent(part), "    ") if indented else part)
    return tuple(found)
