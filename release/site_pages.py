"""Hooks of mkdocs: the pages that are made and not written, so that they show what the code does today.

The front page is README; the gallery and the demo are verdicts on recorded jobs; the reference is read from the command
line and from the published schema. A link to a file of the repository that is no page becomes its name.
"""

from __future__ import annotations

import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

import hangscope
from cli_reference import Verb, verbs
from hangscope.report.contract_schema import schema
from hangscope.report.terminal import render_text

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
GALLERY = (
    (
        "A rank never got there",
        "cases/mesh_absent",
        "Data loading holds one rank; seven wait.",
    ),
    ("A crash", "incidents/kill", "One rank was killed, and `hangscope run` saw it before anybody waited for long."),
    ("An exception", "cases/ddp_oom", "One rank ran out of memory, and its peers wait for it."),
    ("A process that is frozen", "cases/sigstop", "It exists and answers nothing."),
    ("A GPU that does not finish", "cases/gpu_stall", "A kernel that never ends, in front of the collective."),
    ("A mismatch", "cases/size_mismatch", "One rank calls with another size."),
    ("A deadlock", "cases/deadlock2", "Two groups, used in another order by some ranks."),
    ("The network", "cases/link_stall8", "Everybody joined, and the bytes of one connection do not arrive."),
    (
        "A pause",
        "recorded_live.tar.xz/evaluates",
        "One rank evaluated, the others waited, and the job went on by itself.",
    ),
    ("Slow, not hung", "cases/straggler8", "One rank makes all others wait, step after step."),
    ("Nothing is wrong", "cases/healthy", "Progress was seen on every rank."),
)
_LINK = re.compile(r"(!?)\[((?:`[^`]*`|[^\]`])*)\]\(([^)#:]+)(#[^)]*)?\)")
"""A link to a file, whose words may be code with brackets in it."""


def on_files(files: Files, config: Any) -> Files:
    """mkdocs calls it with what lies in docs/."""
    made = {
        "index.md": at_the_top("README.md"),
        "gallery.md": gallery(),
        "demo-page.md": DEMO,
        "demo/incident.html": hangscope.diagnose(TESTS / "cases" / "mesh_absent").to_html(),
        "reference-cli.md": cli_page(verbs()),
        "reference-json.md": json_page(schema()),
        "reference-environment.md": environment_page(verbs()),
        "changelog.md": at_the_top("CHANGELOG.md"),
    }
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """mkdocs calls it with every page's text."""
    here = os.path.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(here, match[3]))
        if files.get_file_from_path(target) is not None:
            return match[0]
        exists = (ROOT / "docs" / target).exists()
        return (
            f"{match[2]} (`{os.path.normpath(os.path.join('docs', target))}` in the repository)" if exists else match[0]
        )

    return _LINK.sub(replaced, markdown)


def on_config(config: Any) -> Any:
    """mkdocs calls it first: a verb whose page nobody put into the menu is added to it."""
    (listed,) = (section["Verbs"] for section in config.nav if "Verbs" in section)
    known = str(config.nav)
    for verb in verbs():
        if f"'{verb.name}.md'" not in known:
            listed.append({verb.name: f"{verb.name}.md"})
    return config


def at_the_top(name: str) -> str:
    """A file beside docs/, with its links as seen from docs/."""
    text = (ROOT / name).read_text(encoding="utf-8")

    def moved(match: re.Match[str]) -> str:
        target = match[3].removeprefix("docs/") if match[3].startswith("docs/") else f"../{match[3]}"
        target = "changelog.md" if match[3] == "CHANGELOG.md" else target
        return f"{match[1]}[{match[2]}]({target}{match[4] or ''})"

    return _LINK.sub(moved, text)


DEMO = """# A real incident's page

What `hangscope report -o hang.html` writes, and `hangscope run` with every incident: one file, without network. This
one is of a recorded NCCL job of eight ranks. [Alone in the window](demo/incident.html); [how to read it](page.md).

<iframe src="demo/incident.html" title="The page of an incident" style="width:100%;height:80vh;border:1px solid #8888">
</iframe>
"""


def gallery() -> str:
    """One recorded job of each kind, as `hangscope diagnose` says it."""
    parts = ["# Gallery of verdicts\n\nRecorded jobs, and what `hangscope diagnose` prints of each.\n"]
    for title, case, what in GALLERY:
        with recorded(case) as folder:
            text = render_text(hangscope.diagnose(folder), width=80).replace(f"{folder.parent}/", "")
        shown = f"tests/{case}" if ".tar" not in case else Path(case).name
        parts.append(f"## {title}\n\n{what}\n\n```text\n$ hangscope diagnose {shown}\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


@contextmanager
def recorded(case: str) -> Iterator[Path]:
    """A recorded job's folder; one that lies in an archive (``x.tar.xz/name``) is unpacked for as long."""
    archive, inside = Path(case).parent, Path(case).name
    if archive.suffix != ".xz":
        yield TESTS / case
        return
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(TESTS / archive) as whole:
        whole.extractall(scratch, [one for one in whole if one.name.startswith(f"{inside}/")], filter="data")
        yield Path(scratch, inside)


def cli_page(found: list[Verb]) -> str:
    """The reference of all verbs."""
    parts = ["# The command line\n\nMade from the code. Each verb has a page with examples, linked below.\n"]
    for verb in found:
        body = "\n\n".join(p if p.startswith("    ") else _plain(p) for p in verb.paragraphs)
        rows = "\n".join(f"| `{names.replace('|', chr(92) + '|')}` | {_plain(text)} |" for names, text in verb.options)
        table = f"| option | |\n|---|---|\n{rows}\n" if rows else ""
        link = f"[The page of {verb.name}]({verb.name}.md)"
        parts.append(f"## hangscope {verb.name}\n\n    {verb.usage}\n\n{body}\n\n{link}\n\n{table}")
    return "\n".join(parts)


def _plain(text: str) -> str:
    """Help text in Markdown: nothing in it is markup but code in backticks."""
    return re.sub(r"([<>*_\[\]|])(?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\\1", text.replace("\n", " "))


INTERNAL = {
    "HANGSCOPE_SOCKETS",
    "HANGSCOPE_CRASH_STACKS",
    "HANGSCOPE_FROM_OUTSIDE",
    "HANGSCOPE_COMPLETE",
    "HANGSCOPE_DECODER",
    "HANGSCOPE_SCANNER",
}
"""What `run` tells its own parts in the ranks, what completion in shells is told, and what turns C off for a test."""


def environment_page(found: list[Verb]) -> str:
    """Every variable that the code reads or sets: by the option that it stands for, else by the pages that say more."""
    rows: dict[str, list[str]] = {}
    for verb in found:
        for names, text in verb.options:
            for variable in re.findall(r"env var: (HANGSCOPE_\w+)", text):
                rows.setdefault(variable, []).append(f"[`{verb.name} {names.split()[0].rstrip(',')}`]({verb.name}.md)")
    source = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py")))
    others = set(re.findall(r"\bHANGSCOPE_[A-Z_]+[A-Z]\b", source)) - set(rows) - INTERNAL
    pages = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
    explained = {name: [f"[{page[:-3]}]({page})" for page, text in pages.items() if name in text] for name in others}
    unknown = sorted(name for name, where in explained.items() if not where)
    if unknown:
        raise SystemExit(f"error: no page says what {', '.join(unknown)} is for")
    options = "\n".join(f"| `{name}` | {', '.join(rows[name])} |" for name in sorted(rows))
    more = "\n".join(f"| `{name}` | {', '.join(explained[name])} |" for name in sorted(explained))
    return (
        "# Environment variables\n\nMade from the code. What is given on the command line counts before a variable. "
        "What `run` sets for PyTorch and NCCL is on the page of [the settings](settings.md); [`env`](env.md) prints it."
        "\n\n## In place of an option\n\n"
        f"| variable | option |\n|---|---|\n{options}\n\n## Others\n\n| variable | said on |\n|---|---|\n{more}\n"
    )


def json_page(published: dict[str, Any]) -> str:
    """The contract of `--json`, field by field."""
    parts = [
        f"# The verdict as JSON\n\n{published.get('description', '')}\n\nMade from the published schema, "
        "`hangscope/report/diagnosis.schema.json` in the package. Unknown values are null and never left out.\n",
        "| field | type | |\n|---|---|---|",
    ]
    definitions = published.get("$defs", {})
    for name, field in published["properties"].items():
        parts.append(f"| `{name}` | {_type(field)} | {_plain(field.get('description', ''))} |")
    for name, definition in definitions.items():
        parts.append(f"\n## {name}\n\n{_plain(definition.get('description', ''))}\n\n| field | type | |\n|---|---|---|")
        for key, field in definition.get("properties", {}).items():
            parts.append(f"| `{key}` | {_type(field)} | {_plain(field.get('description', ''))} |")
    return "\n".join(parts) + "\n"


def _type(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "$ref" in field:
        return f"[{field['$ref'].rpartition('/')[2]}](#{field['$ref'].rpartition('/')[2].lower()})"
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " or ".join(_type(one) for one in field[key])
    kinds = field.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    inner = f" of {_type(field['items'])}" if "items" in field else ""
    return " or ".join(kinds) + inner
