"""The page in a real browser: Debian's Chromium, headless, the file from disk, the network off."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import hangscope
from hangscope.diagnosis.verdict import Diagnosis, Finding, FirstReported, LastCompleted, Link, LinkEnd, RuledOut
from hangscope.model import Frame, Gap, Job, Source
from hangscope.report.page.render_page import render_page
from kits.big_jobs import big_job, its_verdict
from kits.small_dumps import entry, group, packed, top

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync"
)
CASES = Path(__file__).parents[1] / "cases"
WIDE, PHONE = (1400, 1000), (390, 800)

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `make test-deps` installs it where it can"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield started
        started.close()


@dataclass
class Shown:
    """An open page, with everything that went wrong or left it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, where: str) -> str:
        said: str = self.page.locator(where).inner_text()
        return said

    def view(self) -> tuple[int, int]:
        found = self.page.evaluate(
            "(({from, to}) => [Number(from), Number(to)])(document.getElementById('lines').dataset)"
        )
        return found[0], found[1]

    def rows(self) -> int:
        return int(self.page.get_attribute("#lines", "data-rows"))

    def colour_at(self, x: float, y: float) -> list[int]:
        """The colour of the timeline's canvas at a place in CSS pixels."""
        code = """([x, y]) => {
            const shown = document.getElementById('lines-canvas'), ratio = shown.width / shown.clientWidth;
            const copy = Object.assign(document.createElement('canvas'), { width: 1, height: 1 });
            const pen = copy.getContext('2d', { willReadFrequently: true });
            pen.drawImage(shown, -Math.floor(x * ratio), -Math.floor(y * ratio));
            return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }"""
        found: list[int] = self.page.evaluate(code, [x, y])
        return found

    def named_colour(self, name: str) -> list[int]:
        code = "(n) => getComputedStyle(document.documentElement).getPropertyValue(n).trim()"
        text = self.page.evaluate(code, f"--{name}").lstrip("#")
        return [int(text[i : i + 2], 16) for i in (0, 2, 4)]

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        wide: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return wide

    def close(self) -> None:
        self.page.context.close()
        assert self.errors == []
        assert self.requests == []


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    opened: list[Shown] = []

    def open_page(html: str, size: tuple[int, int] = WIDE, hash: str = "", **options: Any) -> Shown:
        file = tmp_path / "hang.html"
        file.write_text(html, encoding="utf-8")
        viewport = {"width": size[0], "height": size[1]}
        context = browser.new_context(viewport=viewport, offline=True, **options)
        shown = Shown(context.new_page())
        opened.append(shown)
        shown.page.on("console", lambda message: shown.errors.append(message.text))
        shown.page.on("pageerror", lambda error: shown.errors.append(str(error)))
        shown.page.on("dialog", lambda dialog: (shown.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        own = file.as_uri()
        shown.page.on("request", lambda r: None if r.url.split("#")[0] == own else shown.requests.append(r.url[:200]))
        shown.page.goto(own + hash)
        shown.page.wait_for_selector("html[data-drawn=yes]", state="attached")
        return shown

    yield open_page
    for shown in opened:
        shown.close()


@cache
def recorded(name: str) -> str:
    job = hangscope.load(CASES / name)
    return render_page(hangscope.diagnose(job), job)


@cache
def simulated(ranks: int, steps: int, culprit: int) -> str:
    job = big_job(ranks, steps, culprit)
    return render_page(its_verdict(job, steps, culprit), job)


@pytest.mark.parametrize(
    ("html", "culprit"),
    [
        (lambda: recorded("cpu_stall"), 2),
        (lambda: simulated(1024, 40, 700), 700),
        (lambda: simulated(16_384, 4, 281), 281),
    ],
    ids=["4", "1024", "16384"],
)
def test_the_culprit_is_marked_at_any_size(show: Any, html: Any, culprit: int) -> None:
    """At 4, 1,024 and 16,384 ranks the culprit's row is first and marked in matrix and timeline; nothing is logged, and
    nothing is requested."""
    shown = show(html())
    first = shown.page.locator("#matrix-table tbody tr").first
    assert "culprit" in first.get_attribute("class")
    assert first.locator("th").inner_text().strip().startswith(f"{culprit} ")
    assert shown.page.locator("#matrix-table tr.culprit").count() == 1
    assert shown.colour_at(6, 50) == shown.named_colour("culprit")  # the mark before the first row's number
    assert shown.colour_at(6, 70) != shown.named_colour("culprit")
    assert shown.overflow() == 0


def test_a_thousand_ranks_are_painted_at_once(show: Any) -> None:
    """At 1,024 ranks the first paint comes within three seconds, and so does the timeline."""
    shown = show(simulated(1024, 40, 700))
    painted = shown.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert painted < 3000
    assert shown.page.evaluate("performance.now()") < 6000


def test_hovering_shows_the_operation(show: Any) -> None:
    """The tip over a bar names operation, group, size, state, time, code line and rank; over a cell, what it says."""
    shown = show(recorded("mesh_absent"))
    canvas = shown.page.locator("#lines-canvas")
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] - 30, "y": 71})  # the second row, in the wait
    tip = shown.text("#tip")
    for needed in ("all_reduce #7", "mesh_tp", "64.0 KiB", "not finished", "/workspace/train.py:59", "rank 4"):
        assert needed in tip
    canvas.hover(position={"x": 300, "y": 71})
    assert "took" in shown.text("#tip")
    shown.page.locator("#matrix-table tr.culprit td .cell-n").first.hover()
    assert "not launched" in shown.text("#tip")
    shown.page.mouse.move(5, 5)
    assert shown.page.locator("#tip").is_hidden()


def test_filters_narrow_every_view_and_stand_in_the_address(show: Any) -> None:
    """Rank, node and group filter both views; the address keeps them, and opens what it names."""
    shown = show(recorded("mesh_absent"))
    assert shown.rows() == 8
    shown.page.fill("#f-rank", "4-6")
    assert shown.rows() == 3
    assert shown.page.locator("#matrix-table tbody tr:not(.off)").count() == 3
    assert "rank=4-6" in shown.page.url
    shown.page.click("#f-clear")
    shown.page.select_option("#f-node", "gpu-worker-13")
    assert shown.rows() == 2
    shown.page.click("#f-clear")
    shown.page.select_option("#f-group", label="mesh_tp (6)")
    assert shown.rows() == 4
    shown.page.click("#f-clear")
    assert shown.rows() == 8
    shown.page.fill("#f-rank", "six")
    assert "is not a rank" in shown.text("#picked")
    again = show(recorded("mesh_absent"), hash="#rank=6")
    assert again.rows() == 1
    assert again.page.input_value("#f-rank") == "6"


def test_picking_in_one_view_marks_in_all(show: Any) -> None:
    """A click on a row of the matrix or on a box of the waits picks its ranks everywhere; a second click lets go."""
    shown = show(recorded("mesh_absent"))
    shown.page.locator("#matrix-table tbody tr").first.click()
    assert shown.page.input_value("#f-rank") == "6"
    assert shown.rows() == 1
    assert shown.page.locator(".graph .box.off").count() == 5
    shown.page.locator("#matrix-table tbody tr").first.click()
    assert shown.rows() == 8
    shown.page.locator(".graph .box").nth(2).click()
    assert shown.rows() == 3


def test_zoom_and_pan_by_buttons_mouse_and_wheel(show: Any) -> None:
    """Buttons, dragging and the wheel with ctrl move the view; reset brings it back; all shows the whole wait."""
    shown = show(recorded("mesh_absent"))
    home = shown.view()
    shown.page.click("[data-do=in]")
    closer = shown.view()
    assert closer[1] - closer[0] < (home[1] - home[0]) * 0.7
    shown.page.click("[data-do=home]")
    assert shown.view() == home
    box = shown.page.locator("#lines-canvas").bounding_box()
    shown.page.mouse.move(box["x"] + 400, box["y"] + 90)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + 500, box["y"] + 90, steps=4)
    shown.page.mouse.up()
    assert shown.view()[0] < home[0]
    shown.page.keyboard.down("Control")
    shown.page.mouse.wheel(0, 400)
    shown.page.keyboard.up("Control")
    assert shown.view()[1] - shown.view()[0] > home[1] - home[0]
    shown.page.click("[data-do=all]")
    assert shown.view()[1] > 15e6  # microseconds: the job waited 20 s


def test_everything_works_by_keyboard(show: Any) -> None:
    """Tab reaches filter, matrix and timeline; keys move, zoom, step through operations and pick a rank."""
    shown = show(recorded("mesh_absent"))
    reached = set()
    for _ in range(60):
        shown.page.keyboard.press("Tab")
        code = "document.activeElement.id || document.activeElement.dataset.row || document.activeElement.tagName"
        reached.add(str(shown.page.evaluate(code)))
    assert {"f-rank", "f-node", "f-group", "0", "lines", "copy"} <= reached
    shown.page.focus("#lines")
    home = shown.view()
    shown.page.keyboard.press("+")
    assert shown.view()[1] - shown.view()[0] < home[1] - home[0]
    shown.page.keyboard.press("ArrowRight")
    moved = shown.view()
    assert moved[0] > home[0]
    shown.page.keyboard.press("0")
    assert shown.view() == home
    shown.page.keyboard.press("ArrowDown")
    shown.page.keyboard.press("Shift+ArrowLeft")
    assert "rank 4" in shown.text("#tip")
    shown.page.keyboard.press("Enter")
    assert shown.page.input_value("#f-rank") == "4"
    shown.page.focus("#matrix-table tbody tr")
    shown.page.keyboard.press("ArrowDown")
    shown.page.keyboard.press("Enter")
    assert shown.page.input_value("#f-rank") == "0"


def test_dark_light_phone_and_paper(show: Any) -> None:
    """It follows the system's colours and the button, fits a phone without scrolling sideways, prints on one sheet."""
    shown = show(recorded("mesh_absent"), color_scheme="dark")
    dark = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert shown.colour_at(6, 50) == shown.named_colour("culprit")
    shown.page.click("#theme")
    assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    assert shown.colour_at(6, 50) == shown.named_colour("culprit")
    assert shown.page.pdf(prefer_css_page_size=True).count(b"/Type /Page\n") == 1
    phone = show(recorded("mesh_absent"), size=PHONE, has_touch=True)
    assert phone.overflow() == 0
    assert phone.page.locator("h1").bounding_box()["y"] < 200


HOSTILE = (
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "javascript:window.pwned=1",
    "\"'><svg onload=window.pwned=1>",
    "{{ 7 * 7 }}{% for x in y %}",
    "\u202egnp.exe\u2066\u200f",
    "\u2028</style><style>*{display:none}</style>",
    "A" * 10_000,
    "<!--",
)


def evidence(folder: Path) -> tuple[Diagnosis, Job]:
    """A job from dumps, logs and a roster in which every name that they can set is hostile."""
    for rank in range(4):
        entries = []
        for record, text in enumerate(HOSTILE):
            frames = [
                {"name": text, "filename": f"/w/{text}", "line": 7},
                {"name": "main", "filename": text, "line": 1},
            ]
            entries.append(entry(record, record + 1, f"nccl:{text}", frames=frames, process_group=("0", HOSTILE[1])))
        last = {
            "state": "started",
            "time_discovered_completed_ns": None,
            "retired": False,
            "frames": entries[0]["frames"],
        }
        if rank != 2:
            entries.append(entry(len(HOSTILE), len(HOSTILE) + 1, process_group=("0", HOSTILE[1]), **last))
        node = folder / f"n{rank // 2} {HOSTILE[2].replace('/', '')}"
        node.mkdir(parents=True, exist_ok=True)
        (node / f"nccl_trace_rank_{rank}").write_bytes(packed(top(entries, group("0", HOSTILE[1], 0, 1, 2, 3))))
        log = "\n".join(f"[rank{rank}]: {text}" for text in HOSTILE)
        log += f"\n[rank{rank}]: Traceback (most recent call last):"
        log += f'\n[rank{rank}]:   File "{HOSTILE[0]}", line 1, in {HOSTILE[2]}'
        (node / f"rank_{rank}.log").write_text(log + f"\n[rank{rank}]: ValueError: {HOSTILE[4]}\n", encoding="utf-8")
    job = hangscope.load(folder)
    return hangscope.diagnose(job), job


def poisoned(value: Any, text: str) -> Any:
    """`value` with `text` in every string of it, those apart that hangscope chooses itself."""
    if isinstance(value, str):
        return value + text
    if isinstance(value, tuple):
        return tuple(poisoned(item, text) for item in value)
    if isinstance(value, dict):
        return {key: poisoned(item, text) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        own = ("kind", "outcome", "confidence", "state_by_rank")
        return replace(
            value, **{f.name: poisoned(getattr(value, f.name), text) for f in fields(value) if f.name not in own}
        )
    return value


def everywhere(text: str) -> tuple[Diagnosis, Job]:
    """A hang whose every name, sentence, source and frame holds `text`."""
    job = big_job(16, 6, culprit=5, text=text)
    verdict = its_verdict(job, 6, culprit=5)
    link = Link(LinkEnd(5, "node", "mlx5_0"), LinkEnd(6, "node", "mlx5_1"), 0, "")
    more = {
        "link": link,
        "ruled_out": (RuledOut("gpu", "why"),),
        "gaps": (Gap("what", "why", 3, "node", Source("file", "place")),),
        "first_reported": FirstReported(4, "node", None, "all_reduce"),
        "last_completed": LastCompleted("mesh", 5, "all_reduce", (Frame("f", "/w/x.py", 1),), None),
        "evidence": (Finding("fact", (Source("file", "line 1"),), ("detail",)),),
        "versions": {"torch": "2.11"},
    }
    return poisoned(replace(verdict, **more), text), job


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("what", ["evidence", "markup", "long"])
def test_nothing_in_evidence_can_run_or_break_the_page(
    show: Any, tmp_path: Path, what: str, size: tuple[int, int]
) -> None:
    """Markup, script addresses, quotes, template and bidi marks and 10 kB names in files, nodes, groups, functions, log
    lines and frames are shown as text: nothing runs, no element comes of them, and the layout holds."""
    made = {
        "evidence": lambda: evidence(tmp_path / "evidence"),
        "markup": lambda: everywhere("".join(text for text in HOSTILE if len(text) < 100)),
        "long": lambda: everywhere("A" * 10_000),
    }
    html = render_page(*made[what]())
    assert len(html) < 1_000_000
    shown = show(html, size=size)
    assert shown.page.evaluate("window.pwned") is None
    count = "['script', 'img', 'a', 'iframe', 'style', 'body *:not(header):is([onload], [onerror])']"
    assert shown.page.evaluate(f"{count}.map((t) => document.querySelectorAll(t).length)") == [2, 0, 0, 0, 1, 0]
    assert shown.overflow() == 0
    canvas = shown.page.locator("#lines-canvas")
    canvas.hover(position={"x": canvas.bounding_box()["width"] - 20, "y": 71})
    assert shown.page.locator("#tip").bounding_box()["width"] <= size[0]
    said = shown.page.evaluate("document.body.innerText")
    assert not {"\u202e", "\u2066", "\u200f", "\u2028"} & set(said)
    if what == "markup":
        assert "<script>window.pwned=1</script>" in said
        assert "{{ 7 * 7 }}" in said


def test_what_only_a_pointer_or_a_reader_aloud_meets_is_as_clean(show: Any) -> None:
    """Characters that hide or turn others stand in no title, label, option or datum of the page, nor does an address
    that somebody else wrote bring any, or markup, into it."""
    html = render_page(*everywhere("\u202eA\u200bB\u2066C\u00adD\ufeff\U000e0041<b>"))
    written = "#rank=%3Cimg%20src=x%20onerror=window.pwned=1%3E&node=%22%3E%3Cscript%3Ewindow.pwned=1%3C/script%3E"
    shown = show(html, hash=written)
    every = "[...document.querySelectorAll('*')].flatMap((e) => [...e.attributes].map((a) => a.value)).join('\\n')"
    inside = "JSON.stringify(JSON.parse(document.getElementById('data').textContent))"
    for where in (every, inside, "document.body.textContent", "document.title"):
        said = shown.page.evaluate(where)
        assert not {"\u202e", "\u200b", "\u2066", "\u00ad", "\ufeff", "\U000e0041"} & set(said), where
    assert shown.page.evaluate("window.pwned") is None
    assert shown.page.locator("img, b:has(b)").count() == 0


def test_the_policy_holds_where_everything_else_failed(show: Any) -> None:
    """Even markup that stood in the page could run no script, load no picture, style or frame, and send no form."""
    smuggled = (
        "<script>window.pwned=1</script><img src=http://evil.example/i onerror=window.pwned=1>"
        "<svg onload=window.pwned=1></svg><a id=go href=javascript:window.pwned=1>x</a><iframe srcdoc='<script>"
        "parent.pwned=1</script>'></iframe><link rel=stylesheet href=http://evil.example/s><base href=http://evil.example>"
        "<form action=http://evil.example id=f><input name=x></form><object data=http://evil.example/o></object>"
    )
    shown = show(recorded("pair_absent").replace("<main>", f"<main>{smuggled}"))
    shown.page.evaluate("document.getElementById('go').click()")
    shown.page.evaluate("document.getElementById('f').submit()")
    assert shown.page.evaluate("window.pwned") is None
    assert shown.page.evaluate("document.baseURI").startswith("file:")
    assert sum("Content Security Policy" in error for error in shown.errors) >= 6
    for url in shown.requests:  # begun, and refused before anything left
        assert any(url in error and "violates" in error for error in shown.errors), url
    shown.errors.clear()
    shown.requests.clear()
