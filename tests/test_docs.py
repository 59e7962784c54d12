"""The Python in the README and the docs runs as it stands there."""

from __future__ import annotations

import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from protofed.analysis import compare_methods
from protofed.data.benchmark_info import Domain
from protofed.data.benchmarks import BENCHMARKS

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if BLOCK.search(page.read_text())
]
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)]*)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@pytest.fixture
def thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tenth image of digits-mini, and all runs in this process."""
    whole = BENCHMARKS["digits-mini"]

    def read(name: str) -> Domain:
        domain = whole.read(name)
        rows = [torch.arange(0, len(part), 10) for part in (domain.train, domain.test)]
        return domain._replace(train=domain.train.take(rows[0]), test=domain.test.take(rows[1]))

    monkeypatch.setitem(BENCHMARKS, "digits-mini", replace(whole, read=read))
    monkeypatch.setattr(compare_methods, "process_count", lambda workers: 0)


def play(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    script = folder / "page.py"
    script.write_text("\n".join(BLOCK.findall(page.read_text())))
    runpy.run_path(str(script), run_name="page")


@pytest.mark.usefixtures("thinned")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(page, tmp_path, monkeypatch)
    assert "optical" in capsys.readouterr().out  # every page ends by printing scores


@pytest.mark.long
def test_the_readme_runs_on_all_images_and_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(ROOT / "README.md", tmp_path, monkeypatch)
    assert "optical" in capsys.readouterr().out


def test_pages_with_code_are_found() -> None:
    assert {page.name for page in PAGES} >= {"README.md", "add-a-method.md"}


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page}: {target}"


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get: lower case, no punctuation, hyphens for spaces."""
    plain = (re.sub(r"[^\w\s-]", "", title.lower()) for title in HEADING.findall(page.read_text()))
    return {title.strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name
)
def test_links_lead_to_headings(page: Path) -> None:
    for target, anchor in ANCHOR.findall(page.read_text()):
        if not target.startswith("http"):
            other = page.parent / target if target else page
            assert anchor in anchors(other), f"{page}: {target}#{anchor}"
