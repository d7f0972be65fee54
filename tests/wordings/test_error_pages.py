"""The pages that people find by an error message are made from the catalogue, and are current."""

import pytest

import error_pages

PAGES = error_pages.pages()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_what_the_catalogue_makes(name: str) -> None:
    """docs/errors says what the rows, and hangscope itself, say today: `python tests/error_pages.py --write`."""
    assert (error_pages.DOCS / name).read_text(encoding="utf-8") == PAGES[name]


def test_no_page_is_left_over() -> None:
    """A message that left the catalogue has no page, and there are as many as promised."""
    assert {path.name for path in error_pages.DOCS.glob("*.md")} == set(PAGES)
    assert len(error_pages.PAGES) >= 25


def test_the_table_of_formats_is_what_the_catalogue_makes() -> None:
    """docs/log-formats.md lists every row."""
    assert error_pages.FORMATS.read_text(encoding="utf-8") == error_pages.formats()
