"""Takes the pictures of the live page and of the report that are in docs/images, with Chromium.

    python tools/page_pictures.py [--workspace DIR]

The runs are those of examples/sweep-digits.toml; what the workspace has already is not run again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
SWEEP = "sweep-digits"
DESKTOP, TABLET, PHONE = (1280, 1000), (860, 1160), (375, 740)


def muster(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "muster.cli.main", *arguments]


@contextmanager
def served(workspace: Path) -> Iterator[str]:
    """The address of a live page on the workspace."""
    command = muster("ui", "--workspace", str(workspace))
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait(10)


class Picture(NamedTuple):
    """A file of docs/images: what is in a window of this size at `place`, once `sign` is there."""

    file: str
    place: str
    sign: str
    size: tuple[int, int]
    dark: bool

    def take(self, browser: Browser, address: str) -> None:
        width, height = self.size
        scheme: Literal["dark", "light"] = "dark" if self.dark else "light"
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(address)
        if self.place:
            page.get_by_role("heading", name="Runs").wait_for()
            page.evaluate("(place) => { location.hash = place }", self.place)
        page.locator(self.sign).first.wait_for()
        page.wait_for_timeout(800)
        page.screenshot(path=IMAGES / self.file)
        page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workspace", type=Path)
    workspace = parser.parse_args().workspace or Path(tempfile.mkdtemp())
    subprocess.run(
        muster("sweep", str(ROOT / "examples" / f"{SWEEP}.toml"), "--workspace", str(workspace)), check=True
    )
    report = workspace / "report.html"
    subprocess.run(muster("report", SWEEP, "--workspace", str(workspace), "-o", str(report)), check=True)

    from muster.results.store import Store

    with Store(workspace) as store:
        run = next(found.fingerprint for found in store.runs() if found.name.startswith("terraform"))
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    with served(workspace) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        for picture in (
            Picture("ui-runs.png", "#/runs", ".grid tbody a", DESKTOP, dark=False),
            Picture("ui-curves.png", f"#/run/{run}/curves", ".chart canvas", DESKTOP, dark=True),
            Picture("ui-map.png", f"#/run/{run}/map", ".cells canvas", DESKTOP, dark=False),
            Picture("ui-client.png", f"#/run/{run}/clients/1", ".bars", DESKTOP, dark=False),
            Picture("ui-compare.png", f"#/compare?sweep={SWEEP}", ".problem canvas", DESKTOP, dark=False),
            Picture("ui-phone.png", f"#/compare?sweep={SWEEP}", ".problem canvas", PHONE, dark=True),
        ):
            picture.take(browser, address)
        Picture("report.png", "", "h1", TABLET, dark=False).take(browser, report.resolve().as_uri())
        Picture("report-phone.png", "", "h1", PHONE, dark=True).take(browser, report.resolve().as_uri())


if __name__ == "__main__":
    main()
