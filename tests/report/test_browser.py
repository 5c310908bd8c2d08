"""The page in a real browser, opened from the file system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tritonbatch.report.page import write_page
from tritonbatch.report.table import numbers
from tritonbatch.report.verdict import verdicts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    Sample = Any

pytestmark = pytest.mark.browser

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; its absence is an error in continuous integration and a reason to skip elsewhere."""
    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail("chromium is not installed; expected it on PATH; install the system packages")
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where there is a browser to drive

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu", *QUIET])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def pages(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sample page, and one whose names are all hostile."""
    folder = tmp_path_factory.mktemp("pages")
    hostile = [
        replace(m, model=HOSTILE, variant=m.variant + HOSTILE, load=replace(m.load, name=m.load.name + HOSTILE))
        for m in sample.measurements[:6]
    ]
    records = {(m.model, m.load.name, m.variant): r for m, r in zip(hostile, sample.records.values(), strict=False)}
    for name, measurements, runs in (("sample", sample.measurements, sample.records), ("hostile", hostile, records)):
        found = verdicts(measurements)
        manifest = {"seed": 7, name: HOSTILE}
        write_page(folder / name, measurements=measurements, records=runs, manifest=manifest, verdicts=found)
        (folder / name).rename(folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in ("sample", "hostile")}


class Visit:
    """One page opened, with everything that it said and asked for."""

    def __init__(self, browser: Browser, path: Path, *, width: int = 1280, scheme: Any = "light") -> None:
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        # Waiting for a function would evaluate text in the page, which its policy forbids.
        self.page.locator("html[data-drawn]").wait_for(timeout=60_000)


@pytest.mark.parametrize("name", ["sample", "hostile"])
def test_opens_quietly_and_alone(browser: Browser, pages: dict[str, Path], name: str) -> None:
    """The page draws every figure, says nothing on the console and asks for no other file."""
    visit = Visit(browser, pages[name])
    assert visit.complaints == []
    assert visit.requests == [pages[name].as_uri()]
    plots = visit.page.locator(".plot").count()
    assert plots == visit.page.locator(".plot svg.main-svg .legend").count() == {"sample": 14, "hostile": 7}[name]
    visit.page.close()


def test_values_are_in_the_table(browser: Browser, pages: dict[str, Path], sample: Sample) -> None:
    """The rows of the table carry the measured values."""
    visit = Visit(browser, pages["sample"])
    rows = [text.split() for text in visit.page.locator(".results tbody tr").all_inner_texts()]
    for m in sample.measurements:
        assert any(m.variant in row and set(numbers(m)) <= set(row) for row in rows)
    visit.page.close()


@pytest.mark.parametrize("name", ["sample", "hostile"])
def test_fits_a_phone(browser: Browser, pages: dict[str, Path], name: str) -> None:
    """At 390 pixels nothing makes the page scroll sideways."""
    visit = Visit(browser, pages[name], width=390)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    visit.page.close()


def test_hostile_names_are_shown_and_not_run(browser: Browser, pages: dict[str, Path]) -> None:
    """Names made of markup appear as they are, in headings and in figures, and nothing of them runs."""
    visit = Visit(browser, pages["hostile"])
    assert visit.page.evaluate("window.hacked") is None
    assert visit.page.locator("h2").first.inner_text() == HOSTILE
    assert visit.page.locator("main img, .plot a").count() == 0
    legend = visit.page.locator(".plot .legendtext").first.evaluate("(node) => node.textContent")
    assert legend == f"serial{HOSTILE}"
    visit.page.close()


def test_follows_the_colour_scheme(browser: Browser, pages: dict[str, Path]) -> None:
    """Dark paper comes with light text, in the figures too, and a change of the system is followed."""
    visit = Visit(browser, pages["sample"], scheme="dark")
    last = "[...document.querySelectorAll('.plot .xtick text')].at(-1)"
    colors = f"() => [getComputedStyle(document.body).color, getComputedStyle({last}).fill]"
    dark_paper, dark_plot = visit.page.evaluate(colors)
    assert dark_paper == dark_plot
    visit.page.emulate_media(color_scheme="light")
    light_paper, light_plot = visit.page.evaluate(colors)
    for _ in range(100):
        if light_paper == light_plot:
            break
        visit.page.wait_for_timeout(100)
        light_paper, light_plot = visit.page.evaluate(colors)
    assert light_paper == light_plot != dark_plot
    visit.page.close()
