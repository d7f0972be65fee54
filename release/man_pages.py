"""Man pages from the same source as `--help`: `python release/man_pages.py --out dist/man`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cli_reference import Verb, verbs
from hangscope.__about__ import __version__


def escaped(text: str) -> str:
    """Text that troff takes as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in text)
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines())


def heading(name: str) -> str:
    return f'.TH {name.upper()} 1 "" "hangscope {__version__}" "hangscope"'


def verb_page(verb: Verb) -> str:
    lines = [heading(f"hangscope-{verb.name}"), ".SH NAME", f"hangscope\\-{verb.name} \\- {escaped(verb.line)}"]
    lines += [".SH SYNOPSIS", ".B " + escaped(verb.usage), ".SH DESCRIPTION"]
    for paragraph in verb.paragraphs:
        if paragraph.startswith("    "):
            lines += [".PP", ".nf", escaped(paragraph), ".fi"]
        else:
            lines += [".PP", escaped(paragraph)]
    lines.append(".SH OPTIONS")
    for names, text in verb.options:
        lines += [".TP", ".B " + escaped(names), escaped(text)]
    return "\n".join([*lines, ".SH SEE ALSO", ".BR hangscope (1)", ""])


def front_page(all_verbs: list[Verb]) -> str:
    lines = [heading("hangscope"), ".SH NAME", "hangscope \\- name what hung a distributed training job"]
    lines += [".SH SYNOPSIS", ".B hangscope", r"\fIVERB\fR [\fIARGS\fR]...", ".SH VERBS"]
    for verb in all_verbs:
        lines += [".TP", f".BR hangscope\\-{verb.name} (1)", escaped(verb.line)]
    lines += [
        ".SH EXIT STATUS",
        "Of diagnose: 0 no hang, 1 a hang with a named cause, 2 unusable input, 3 a hang whose",
    ]
    return "\n".join([*lines, "cause the evidence does not name.", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = verbs()
    (options.out / "hangscope.1").write_text(front_page(found), encoding="utf-8")
    for verb in found:
        (options.out / f"hangscope-{verb.name}.1").write_text(verb_page(verb), encoding="utf-8")
    print(f"{len(found) + 1} man pages in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
