"""The page in a real browser: what it asks for, how it sorts, how it looks."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from protofed.report.confusion import ConfusionCache
from protofed.report.load_runs import read_runs
from protofed.report.page import open_server, render_report
from tests.report.conftest import Copy, lines_of, rewrite_scores, unfinish

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (dev extra)")
CHROMIUM = Path("/usr/bin/chromium")
SWITCHES = [
    f"--{word}"
    for word in (
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-sync",
        "disable-background-networking",
        "disable-component-update",
    )
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"needs Chromium at {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folders = [made / name for name in ("fedavg-0", "fedavg-1", "fpl-0", "fpl-1", "local-0")]
    runs = read_runs(folders)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_report(runs, ConfusionCache(print).of(runs)), encoding="utf-8")
    return path


def opened(
    browser: Browser, file: Path, width: int = 1200, dark: bool = False
) -> tuple[Tab, list[str], list[str]]:
    """The page, what it asked for, and what it complained about."""
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
    )
    asked: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda fault: faults.append(str(fault)))
    page.goto(file.as_uri())
    return page, asked, faults


def test_it_asks_for_nothing_and_complains_of_nothing(browser: Browser, file: Path) -> None:
    page, asked, faults = opened(browser, file)
    page.hover(".wide .plot")
    page.wait_for_selector(".tip")
    assert asked == [file.as_uri()]
    assert faults == []


def test_a_click_on_a_head_sorts(browser: Browser, file: Path) -> None:
    page, _, _ = opened(browser, file)
    column = page.locator("#results-table tbody tr td:nth-child(2)")
    head = page.locator("#results-table thead th").nth(1)
    head.locator("button").click()
    down = [float(text.split()[0]) for text in column.all_inner_texts()]
    assert down == sorted(down, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    head.locator("button").press("Enter")
    assert [float(text.split()[0]) for text in column.all_inner_texts()] == sorted(down)
    assert len(set(down)) > 1, "else nothing was sorted"


def test_pointing_at_a_curve_reads_it(browser: Browser, file: Path, made: Path) -> None:
    page, _, _ = opened(browser, file)
    page.locator(".wide .plot").scroll_into_view_if_needed()
    box = page.locator(".wide .plot").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20)
    told = page.locator(".tip").inner_text()
    local = read_runs([made / "local-0"])[0].evaluations[-1]
    assert "round 3" in told
    assert f"Local\n{local.scores.mean:.2f}" in told


@pytest.mark.parametrize("dark", [False, True])
def test_it_is_not_blank_in_light_and_dark(browser: Browser, file: Path, dark: bool) -> None:
    page, _, _ = opened(browser, file, dark=dark)
    seen = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)
    corner = seen[0, 0].mean()
    assert (corner < 60) if dark else (corner > 200)
    assert (abs(seen - seen[0, 0]).max(2) > 40).mean() > 0.02
    assert len(np.unique(seen @ [65536, 256, 1])) > 50


@pytest.mark.parametrize("width", [320, 400, 1200])
def test_nothing_sticks_out(browser: Browser, file: Path, width: int) -> None:
    page, _, _ = opened(browser, file, width)
    page.locator("summary").evaluate_all("all => all.forEach(one => one.parentNode.open = true)")
    wide = page.evaluate("document.scrollingElement.scrollWidth")
    assert wide <= width


def test_it_prints_on_white_paper(browser: Browser, file: Path) -> None:
    page, _, _ = opened(browser, file, 720, dark=True)
    page.emulate_media(media="print")
    corner = Image.open(io.BytesIO(page.screenshot())).convert("RGB").getpixel((0, 0))
    assert corner == (255, 255, 255)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 720
    assert not page.locator("nav").is_visible()


def test_it_reads_without_scripts(browser: Browser, file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.locator("#results-table tbody tr").count() == 4  # the methods, the largest class
    assert not page.get_by_text("Click a head").is_visible()
    assert page.locator(".wide polyline").first.is_visible()
    context.close()


def test_a_watched_page_renews_itself(browser: Browser, made: Path, copy: Copy) -> None:
    begun = copy("fpl-0")
    unfinish(begun, 1)
    others = [made / "fedavg-0", made / "local-0"]
    server = open_server(0, render_report(read_runs([*others, begun]), watched=True))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(server.address)
    page.locator("#results-table thead button").first.click(click_count=2)
    page.locator("#spec-0 summary").click()
    server.show(render_report(read_runs([*others, made / "fpl-0"]), watched=True))
    page.get_by_text("best of 3 methods").wait_for()
    heads = page.locator("#results-table tbody th").all_inner_texts()
    assert heads == ["Local", "largest class", "FPL", "FedAvg"], "sorted as before"
    assert page.locator("#spec-0").get_attribute("open") is not None
    assert set(asked) == {server.address}
    page.close()
    server.shutdown()
    server.server_close()


def test_a_script_that_slipped_in_would_not_run(
    browser: Browser, file: Path, tmp_path: Path
) -> None:
    evil = tmp_path / "evil.html"
    text = file.read_text(encoding="utf-8")
    evil.write_text(text.replace("<main>", "<main><script>document.title = 'taken'</script>"))
    page, _, faults = opened(browser, evil)
    assert page.title() != "taken"
    assert any("Content Security Policy" in fault for fault in faults)


def test_drawings_have_words_and_tables_have_heads(browser: Browser, file: Path) -> None:
    page, _, _ = opened(browser, file)
    bare = "svg:not(svg svg):not([aria-hidden=true]):not([aria-label])"
    assert page.locator(bare).count() == 0
    assert page.locator("table:not(:has(thead th[scope=col]))").count() == 0
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("html[lang=en] h1").count() == 1


IMAGE = "<img src=x onerror=\"document.title='taken'\">"
NAMES = (
    "<script>document.title = 'taken'</script>",
    f"{IMAGE}../../x",
    f"\"'>{IMAGE}</td></table>",
    "\x1b[2J</style></svg><iframe src=https://example.org>",
)


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_of_domains_classes_and_clients_run_and_ask_for_nothing(
    browser: Browser, copy: Copy, tmp_path: Path, name: str
) -> None:
    folder = copy("local-0")
    for scores in (scored := lines_of(folder / "scores.jsonl")):
        for table in (scores["domains"], scores["own"]["domains"], scores["counts"]):
            table[name] = table.pop("print")
        scores["clients"] = {f"{c}{name}": scores["domains"] for c in scores["clients"]}
    rewrite_scores(folder, scored)
    for file, key in (("done", "notices"), ("partition.json", 0)):
        content = json.loads((folder / file).read_text())
        content[key] = (
            [{"kind": "data", "text": name}]
            if file == "done"
            else {**content[0], "domain": name, "held": {name: 3}}
        )
        (folder / file).write_text(json.dumps(content))
    page_file = tmp_path / "hostile.html"
    page_file.write_text(render_report(read_runs([folder])), encoding="utf-8")
    page, asked, faults = opened(browser, page_file)
    page.wait_for_timeout(100)
    assert (asked, faults) == ([page_file.as_uri()], [])
    assert page.title() != "taken"
    assert page.locator("iframe, img").count() == 0
    assert name.replace("\x1b", "") in page.locator("#results-table").inner_text().replace(
        "\x1b", ""
    )
    page.close()
