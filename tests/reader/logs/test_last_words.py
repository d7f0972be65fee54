"""What a program says of trouble in words of its own, among the last lines that it printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangscope import load
from hangscope.model import LastWord

STEPS = "".join(f"step {number} loss 0.{number}\n" for number in range(200))
END = """W1118 21:38:10.352000 28966 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 29357
Traceback (most recent call last):
  File "/opt/torch/distributed/run.py", line 1032, in <module>
    main()
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
======================================================
train.py FAILED
------------------------------------------------------
  exitcode  : -6 (pid: 29353)
======================================================
"""
TOLD = "callback MetricSync failed: KeyError(60)"


def words(folder: Path, text: str, name: str = "train.log") -> list[LastWord]:
    """Those that speak of trouble."""
    (folder / name).write_text(text)
    return [word for word in load(folder).facts.last_words if word.of_trouble]


def test_a_message_of_the_programs_own_is_kept(tmp_path: Path) -> None:
    """What it printed before its end is kept, whatever the launcher says after it."""
    (found,) = words(tmp_path, f"{STEPS}{TOLD}\n{END}")
    assert (found.text, found.source.place) == (TOLD, "line 201")


def test_an_output_of_these_words_alone_is_read(tmp_path: Path) -> None:
    """What an incident saved of the launcher may hold nothing else that is known yet."""
    logs = tmp_path / "nodes" / "vm" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "train.log").write_text("[rank0]: step 1\n")
    (logs / "launcher.log").write_text(f"epoch 1\n{TOLD}\n")
    assert [word.text for word in load(tmp_path).facts.last_words if word.of_trouble] == [TOLD]


def test_it_has_the_rank_of_its_line(tmp_path: Path) -> None:
    """A line with PyTorch's tag is that rank's."""
    (found,) = words(tmp_path, f"{STEPS}[rank3]: {TOLD}\n{END}")
    assert (found.rank, found.text) == (3, TOLD)


@pytest.mark.parametrize("text", [f"{TOLD}\n{STEPS}{END}", f"{STEPS}{END}", STEPS])
def test_what_was_printed_long_before_is_none(tmp_path: Path, text: str) -> None:
    """Trouble that the job outlived for many lines is not its last word, nor is what launchers print."""
    assert words(tmp_path, text) == []


@pytest.mark.parametrize(
    "end",
    [
        "",
        END,
        "socketProgress: Connection closed by remote peer n1<41276>\n",
        f"{END}  error_file: <N/A>\nRoot Cause (first observed failure):\n[0]:\n",
    ],
)
def test_the_last_line_is_kept_where_none_speaks_of_trouble(tmp_path: Path, end: str) -> None:
    """It is the program's own, and none of what launchers print at their end."""
    (tmp_path / "train.log").write_text(f"{STEPS}quota reached, stopping\n{end}")
    (word,) = load(tmp_path).facts.last_words
    assert (word.text, word.of_trouble) == ("quota reached, stopping", False)
