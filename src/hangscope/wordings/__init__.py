"""Lines of logs as data: one row a wording, with its kind of failure, what its groups mean, and an example.

A wording is added by one row. Its example is a test; the words that decide which lines and files are looked at, the page
docs/log-formats.md and the pages of docs/errors are made from the rows.
"""

from hangscope.wordings.catalogue import ROWS, begun, find, words, words_beyond
from hangscope.wordings.read_elsewhere import READ_ELSEWHERE
from hangscope.wordings.wording import Wording

__all__ = ("READ_ELSEWHERE", "ROWS", "Wording", "begun", "find", "words", "words_beyond")
