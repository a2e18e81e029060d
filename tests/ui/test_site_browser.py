"""The documentation site in a real browser: no page is wider than a phone, nothing is loaded from elsewhere, and
the search finds methods without a server. `make docs` builds the site first.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
#: What sticks out of the window on the right and cannot be reached by scrolling a table or a block of code.
TOO_WIDE = """() => {
  const scrolls = part => part.matches("article")
    ? false : ["auto", "scroll"].includes(getComputedStyle(part).overflowX) || scrolls(part.parentElement);
  return [...document.querySelectorAll("article *")]
    .filter(part => part.getBoundingClientRect().right > innerWidth + 1)
    .filter(part => part.checkVisibility() && !scrolls(part))
    .map(part => part.outerHTML.slice(0, 80));
}"""


@pytest.fixture(scope="module", autouse=True)
def _built():
    if not (SITE / "index.html").exists():
        pytest.skip("the site is not built: make docs")


@pytest.mark.parametrize("width", [375, 1280])
def test_pages_fit_and_load_nothing_from_elsewhere(browser, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    elsewhere: list[str] = []
    page.on("request", lambda request: elsewhere.append(request.url) if request.url.startswith("http") else None)
    paths = [path for path in sorted(SITE.rglob("*.html")) if "_static" not in path.parts]
    assert len(paths) > 100
    too_wide = []
    for path in paths:
        page.goto(path.as_uri())
        if found := page.evaluate(TOO_WIDE):
            too_wide.append((str(path.relative_to(SITE)), found[0]))
    # What it would be like if there were one.
    page.evaluate("document.querySelector('article').insertAdjacentHTML('beforeend', '<div style=width:2000px>')")
    assert page.evaluate(TOO_WIDE)
    page.close()
    assert too_wide == []
    assert elsewhere == []


def test_search_works_without_a_server(browser):
    page = browser.new_page()
    page.goto((SITE / "index.html").as_uri())
    page.fill("input[name=q]", "geometric median")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a")
    assert any("Geometric median" in title for title in page.locator("#search-results li a").all_inner_texts())
    page.close()
