"""The pages of docs/errors, made from the catalogue of wordings.

python tests/error_pages.py --write
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import hangscope
from hangscope.wordings import READ_ELSEWHERE, ROWS, Wording
from hangscope.wordings.pages import PAGES, Page

DOCS = Path(__file__).parents[1] / "docs" / "errors"
FORMATS = DOCS.parent / "log-formats.md"
BEGIN = "<!-- made from the catalogue by tests/error_pages.py -->\n"
END = "<!-- end of what is made -->\n"


def row_of(page: Page) -> Wording:
    (row,) = [row for row in (*ROWS, *READ_ELSEWHERE) if row.page == page.slug]
    return row


def verdict_on(row: Wording) -> str:
    """What hangscope says of the example alone."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        log.write_text(row.example + "\n", encoding="utf-8")
        found = hangscope.diagnose(log)
    return f"{found.outcome.upper()}: {found.headline} (confidence: {found.confidence})"


def text_of(page: Page) -> str:
    row = row_of(page)
    example = "\n".join(f"    {line}".rstrip() for line in row.example.rstrip("\n").split("\n"))
    commands = "\n".join(f"    {command}" for command in page.run)
    return (
        f"# {page.title}\n\n"
        f"*{row.library}; seen in {row.seen}.*\n\n{example}\n\n"
        f"**What it means.** {page.means}\n\n"
        f"**What it does not mean.** {page.means_not}\n\n"
        f"**What to run.**\n\n{commands}\n\n{page.then}\n\n"
        f"From the line above alone hangscope says:\n\n    {verdict_on(row)}\n\n"
        "More lines of more ranks say more: give it all logs and dumps of the job.\n"
    )


def index() -> str:
    rows = "\n".join(
        f"| [{page.title.replace('|', '&#124;')}]({page.slug}.md) | {row_of(page).library} |" for page in PAGES
    )
    return (
        "# Error messages\n\nWhat the commonest messages of distributed jobs mean, what they do not, and what to run. "
        "Other forms are in [log formats](../log-formats.md).\n\n| message | printed by |\n|---|---|\n" + rows + "\n"
    )


def pages() -> dict[str, str]:
    return {"index.md": index(), **{f"{page.slug}.md": text_of(page) for page in PAGES}}


def formats() -> str:
    """docs/log-formats.md with its table of the catalogue's rows."""
    before, _, rest = FORMATS.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    rows = "\n".join(
        f"| `{_cell(row.example)}` | {row.library} | {row.kind or 'takes back what it lost'} | {row.seen} |"
        for row in (*ROWS, *READ_ELSEWHERE)
    )
    return f"{before}{BEGIN}\n| line | printed by | failure | seen in |\n|---|---|---|---|\n{rows}\n\n{END}{after}"


def _cell(example: str) -> str:
    line = " ".join(example.split())
    return (line if len(line) <= 160 else f"{line[:159]}…").replace("`", "'").replace("|", "&#124;")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    DOCS.mkdir(exist_ok=True)
    for old in DOCS.glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
    FORMATS.write_text(formats(), encoding="utf-8")
