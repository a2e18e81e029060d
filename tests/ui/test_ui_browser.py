"""The page in a real browser: rounds arrive, tables sort and filter, clients open, problems compare, runs stop.

Pictures of every view, light, dark and on a phone, are kept in build/ui (MUSTER_UI_PICTURES names another folder).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

import muster
from muster.core.errors import MusterError
from muster.experiment.jobs import run_experiments
from muster.results.store import Store

pytestmark = pytest.mark.browser

PICTURES = Path(os.environ.get("MUSTER_UI_PICTURES", "build/ui"))
EVIL = "<script>document.title='caught'</script><img src=x onerror=alert(1)>"
SLOW = """
import sys, time
from muster.experiment import from_dict
from muster.experiment.runner import run
from muster.server.loop import Observer
class Slow(Observer):
    def round_ended(self, record, ledger):
        time.sleep(0.15)
values = {"name": "live", "rounds": 3000, "data": {"source": "digits"},
          "partition": {"scheme": "iid", "clients": 6}, "model": {"name": "mlp", "hidden": [4]},
          "training": {"lr": 0.1}, "selection": {"method": "random", "clients_per_round": 2}}
run(from_dict(values), 0, store=sys.argv[1], resume=True, observers=[Slow()])
"""


@pytest.fixture(scope="module")
def folder(make_experiments):
    """Two problems × two methods × two seeds, one run in virtual time with an ugly name, and room for more."""
    with tempfile.TemporaryDirectory() as name:
        run_experiments(make_experiments, name, sweep_name="both", jobs=2, workers=0)
        yield Path(name)


@pytest.fixture(scope="module")
def make_experiments(request):
    from muster.experiment import from_dict

    base = {
        "rounds": 6,
        "data": {"source": "digits"},
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"lr": 0.1, "batch_size": 16},
    }
    made = [
        from_dict(
            base
            | {
                "name": method,
                "seed": seed,
                "selection": {"method": method, "clients_per_round": 5},
                "partition": {"scheme": "dirichlet", "clients": 20, "alpha": alpha},
            }
        )
        for alpha in (0.1, 1.0)
        for method in ("random", "terraform")
        for seed in (0, 1)
    ]
    timed = made[0].described() | {"name": EVIL, "devices": {"method": "lognormal"}}
    return [*made, from_dict({key: value for key, value in timed.items() if value != {}})]


@contextmanager
def serving(folder, *options):
    """The address of a page on a workspace."""
    command = [sys.executable, "-m", "muster.cli.main", "ui", "--workspace", str(folder), *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(scope="module")
def address(folder):
    with serving(folder, "--allow-control") as printed:
        yield printed


@pytest.fixture
def page(browser, address):
    """An open page; every error on it fails the test."""
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    opened, errors = context.new_page(), []
    opened.set_default_timeout(30_000)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda line: errors.append(line.text) if _is_error(line) else None)
    opened.on("dialog", lambda dialog: errors.append(f"a dialog: {dialog.message}"))
    opened.goto(address)
    opened.get_by_role("heading", name="Runs").wait_for()
    yield opened
    context.close()
    assert errors == []


def _is_error(line) -> bool:
    # The browser itself writes a line for every answer that is no success; the page tells it in its own words.
    return line.type == "error" and "the server responded with a status of 40" not in line.text


def run_named(folder, name) -> str:
    with Store(folder) as store:
        return store.runs(name=name)[0].fingerprint


def names(page) -> list[str]:
    return page.locator(".grid tbody tr:not(.gap) td:nth-child(2)").all_inner_texts()


def test_the_token_leaves_the_address_and_is_needed(page, browser, address):
    assert "token" not in page.url
    stranger = browser.new_context().new_page()
    stranger.goto(address.partition("?")[0])
    stranger.get_by_text("the token is missing or wrong").wait_for()
    stranger.get_by_label("Token").fill(address.partition("token=")[2])
    stranger.get_by_role("button", name="Enter").click()
    stranger.get_by_role("heading", name="Runs").wait_for()
    stranger.context.close()


def test_names_are_never_markup(page, folder):
    page.get_by_role("link", name=EVIL).wait_for()
    page.evaluate(f"() => {{ location.hash = '#/run/{run_named(folder, EVIL)}/events' }}")
    page.get_by_role("heading", name=EVIL).wait_for()
    for part in ("Configuration", "Timeline", "Clients", "Costs"):
        page.get_by_role("link", name=part, exact=True).click()
        page.locator("section .card, section .grid").first.wait_for()
    page.get_by_role("link", name="Compare").click()
    page.locator(".problem").first.wait_for()
    assert page.locator("main script, main img").count() == 0
    assert "caught" not in page.title().replace(EVIL, "")


def test_sort_filter_and_group(page):
    page.get_by_role("button", name="accuracy", exact=True).click()
    shown = page.locator(".grid tbody tr:not(.gap) td:nth-child(6)").all_inner_texts()
    values = [float(text.rstrip(" %")) for text in shown if text != "–"]
    assert values == sorted(values, reverse=True)
    page.get_by_role("button", name="accuracy", exact=True).click()
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("accuracy")
    page.get_by_role("button", name="alpha", exact=True).click()  # what partition.alpha is called for short
    page.get_by_label("Filter").fill("alpha=0.1 terraform")
    assert names(page) == ["terraform", "terraform"]
    assert "2 of" in page.locator(".tools [role=status]").inner_text()
    page.get_by_label("Filter").fill("accuracy>2")
    assert names(page) == []
    page.get_by_label("Filter").fill("")
    page.get_by_label("Group by").select_option("method")
    groups = page.locator("tr.group button")
    titles = sorted(text.split(":")[0] for text in groups.all_inner_texts())
    assert titles == ["▾ selection random", "▾ selection terraform"]
    for title in groups.all_inner_texts():
        lowest, highest = map(float, re.search(r"mean accuracy \S+ % \((\S+) to (\S+) %\)", title).groups())
        assert lowest < highest, "a mean is not told without the runs around it"
    before = len(names(page))
    groups.first.press("Enter")
    assert len(names(page)) < before
    page.reload()
    page.locator("tr.group").first.wait_for()  # the address keeps how the table is arranged


def test_rounds_arrive_without_a_reload_and_a_run_stops(page, folder):
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(folder)])
    try:
        row = page.locator("tr", has=page.get_by_role("link", name="live", exact=True))
        row.get_by_text("running").wait_for()
        row.get_by_role("link").click()
        facts = page.locator(".run-head .facts")
        facts.get_by_text("running").wait_for()
        page.locator(".chart canvas").first.wait_for()
        page.evaluate("() => { window.stillHere = true }")

        def done() -> int:
            return int(re.search(r"(\d+)/3,000", facts.inner_text()).group(1))

        first = done()
        for _ in range(100):
            page.wait_for_timeout(100)
            if done() >= first + 3:
                break
        assert done() >= first + 3
        rounds = page.locator(".u-legend tr").first.inner_text()
        assert re.search(r"rounds\s*:?\s*\d+", rounds), "the legend tells the last round"
        assert page.evaluate("() => window.stillHere"), "nothing was loaded again"
        page.evaluate("() => { location.hash += '/clients/0' }")
        trainings = page.locator("details summary", has_text="Every training")
        trainings.wait_for()
        before = trainings.inner_text()
        page.wait_for_function(
            "(text) => document.querySelector('section details summary').textContent !== text", arg=before
        )
        page.get_by_role("button", name="Stop after this round").click()
        facts.get_by_text("stopped").wait_for()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        with Store(folder) as store:
            for run in store.runs(name="live"):
                store.delete(run)
    page.get_by_text("it may be deleted").wait_for()


def test_down_to_one_client(page, folder):
    page.evaluate(f"() => {{ location.hash = '#/run/{run_named(folder, 'terraform')}/map' }}")
    canvas = page.locator("canvas")
    canvas.wait_for()
    words = page.locator(".cell-words")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    assert words.inner_text().startswith("Client 0, round 1: ")
    page.keyboard.press("ArrowDown")
    assert words.inner_text().startswith("Client 1, round 1: ")
    canvas.hover(position={"x": 60, "y": 5})
    assert words.inner_text().startswith("Client 0, round 1: ")
    page.get_by_label("Clients by").select_option("samples")
    page.locator("canvas[aria-label*=samples]").wait_for()
    page.get_by_role("link", name="Clients", exact=True).click()
    page.get_by_role("button", name="samples").wait_for()
    page.locator(".grid tbody a").first.click()
    page.get_by_role("heading", name=re.compile(r"Client \d+")).wait_for()
    page.get_by_role("img", name="Share of each class").wait_for()
    page.get_by_text("Every training").click()
    assert page.get_by_role("table", name="Trainings").or_(page.locator("details table")).count()
    page.get_by_role("link", name="All clients").click()
    page.locator(".grid tbody a").first.wait_for()


def test_a_map_of_many_rounds_tells_which_a_cell_stands_for(page, folder):
    """Five rounds in two columns: the server counts rounds 1 to 3 and 4 to 5 together."""
    cells = {"trained": "AgAAAQ==", "left out": "", "refused": "", "failed": ""}
    answer = {"width": 2, "height": 2, "rounds": 5, "clients": 2, "order": [0, 1], "planes": cells}
    page.route("**/api/run/*/map*", lambda route: route.fulfill(json=answer))
    page.evaluate(f"() => {{ location.hash = '#/run/{run_named(folder, 'terraform')}/map' }}")
    page.locator("canvas").focus()
    words = page.locator(".cell-words")
    page.keyboard.press("ArrowRight")
    assert words.inner_text() == "Client 0, rounds 1–3: trained 2 times."
    page.keyboard.press("ArrowRight")
    assert words.inner_text() == "Client 0, rounds 4–5: not chosen."


def test_who_goes_elsewhere_while_a_view_loads_sees_only_that(page, folder):
    held = []

    def hold(route):
        held.append(route)

    page.route(re.compile(r"/api/run/[0-9a-f]+$"), hold)
    page.evaluate(f"() => {{ location.hash = '#/run/{run_named(folder, 'terraform')}' }}")
    page.wait_for_timeout(300)
    page.get_by_role("link", name="Compare").click()
    page.locator(".problem").first.wait_for()
    for route in held:
        route.continue_()
    page.wait_for_timeout(500)
    assert page.locator(".run-head").count() == 0
    assert page.locator(".problem").count() > 1
    page.get_by_label("Problems").fill("alpha=1.0")
    assert page.locator(".problem").count() == 1, "the view that is shown is the one that answers"


def test_times_as_people_read_them(page):
    seconds = [0, 0.25, 1.04, 59.7, 90, 119.7, 900, 3599.8, 5400, 86400, 260000]
    shown = page.evaluate(
        "async (all) => { const own = await import('/format.js'); return all.map(own.duration) }", seconds
    )
    assert shown == [
        *("0 s", "250 ms", "1 s", "1 min", "1 min 30 s", "2 min", "15 min"),
        *("1 h", "1 h 30 min", "24 h", "3 d"),
    ]


def test_numbers_beyond_counting_stay_short(page):
    """The loss of a model that has diverged is a float without a fraction."""
    shown = page.evaluate(
        "async () => { const own = await import('/format.js');"
        " return [own.number(1234567), own.number(726157989735190400),"
        " own.shortNumber(20000), own.shortNumber(2.5e10)] }"
    )
    assert shown == ["1,234,567", "7.26e+17", "20,000", "2.5e10"]


def test_two_problems_compared_and_the_link_reproduces_it(page, browser, address):
    page.get_by_role("link", name="Compare").click()
    page.locator(".problem").first.wait_for()
    page.get_by_label("Sweep").select_option("both")
    page.locator("label.field", has_text="Scores").locator("select").select_option("client_trainings")
    page.get_by_label("Problems").fill("alpha")
    page.get_by_text("Scores after").first.wait_for()
    titles = page.locator(".problem h2").all_inner_texts()
    assert any("alpha=0.1" in title for title in titles)
    assert any("alpha=1.0" in title for title in titles)
    again = page.context.new_page()
    again.goto(page.url)
    again.get_by_text("Scores after").first.wait_for()
    assert again.locator(".problem h2").all_inner_texts() == titles
    assert again.locator("label.field", has_text="Scores").locator("select").input_value() == "client_trainings"


def test_a_choice_of_runs_is_compared(page):
    page.get_by_label("Filter").fill("alpha=1.0")
    for mark in page.locator(".grid tbody input").all():
        mark.check()
    page.get_by_role("link", name=re.compile("Compare 4")).click()
    page.locator(".problem").wait_for()
    assert page.locator(".problem").count() == 1


def test_what_has_the_focus_can_be_seen(page, folder):
    page.evaluate(f"() => {{ location.hash = '#/run/{run_named(folder, 'terraform')}/map' }}")
    page.locator("canvas").wait_for()
    page.locator("select").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.tagName") == "CANVAS"
    assert page.evaluate("() => getComputedStyle(document.querySelector('.stage')).outlineStyle") == "solid"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Client 0").wait_for()


def test_everything_can_be_reached_by_the_keyboard(page):
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "To the content"
    seen = set()
    for _ in range(14):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("() => document.activeElement.id || document.activeElement.textContent.trim()"))
    assert {"Runs", "Compare", "theme", "filter"} <= seen


CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
#: Width, height and theme.
SCREENS = {
    "light": (1360, 900, "light"),
    "dark": (1360, 900, "dark"),
    "phone": (375, 760, "dark"),
    "wide": (3840, 2160, "light"),
}


@pytest.mark.parametrize("kind", SCREENS)
def test_every_view_as_a_picture(browser, address, folder, kind):
    width, height, scheme = SCREENS[kind]
    PICTURES.mkdir(parents=True, exist_ok=True)
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    page.get_by_role("heading", name="Runs").wait_for()
    terraform, timed = run_named(folder, "terraform"), run_named(folder, EVIL)
    views = {
        "runs": ("#/runs", ".grid tbody a"),
        "curves": (f"#/run/{terraform}/curves", ".chart canvas"),
        "map": (f"#/run/{terraform}/map", ".cells canvas"),
        "clients": (f"#/run/{terraform}/clients", ".grid tbody a"),
        "client": (f"#/run/{terraform}/clients/1", ".bars"),
        "federation": (f"#/run/{terraform}/federation", ".cells canvas"),
        "timeline": (f"#/run/{timed}/timeline", ".stage canvas"),
        "costs": (f"#/run/{terraform}/costs", ".card table"),
        "events": (f"#/run/{terraform}/events", "section table"),
        "configuration": (f"#/run/{terraform}/configuration", "pre"),
        "compare": ("#/compare?sweep=both", ".problem canvas"),
    }
    for name, (place, sign) in views.items():
        page.evaluate("(place) => { location.hash = place }", place)
        page.locator(sign).first.wait_for()
        page.wait_for_timeout(300)
        page.screenshot(path=PICTURES / f"{name}-{kind}.png", full_page=True)
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
        assert page.evaluate(CONTRAST) == [], name
        unnamed = page.evaluate(
            "() => [...document.querySelectorAll('button, a, input, select, .stage canvas, .chart')]"
            ".filter((e) => !(e.getAttribute('aria-label') || e.labels?.length || e.textContent.trim()))"
            ".map((e) => e.outerHTML)"
        )
        assert unnamed == [], name
    context.close()


def test_a_failed_run_and_its_events_fit_on_a_phone(browser, tmp_path):
    diverging = muster.Experiment(name="diverging", rounds=12, training={"lr": 1e30})
    with pytest.raises(MusterError):
        muster.run(diverging, 0, store=tmp_path)
    with serving(tmp_path) as address:
        page = browser.new_page(viewport={"width": 375, "height": 740})
        page.goto(address)
        page.get_by_role("link", name="diverging").wait_for()
        accuracy = page.locator(".grid thead th", has_text="accuracy").first.bounding_box()
        assert accuracy["x"] + accuracy["width"] <= 375, "it can be read without scrolling"
        page.get_by_role("link", name="diverging").click()
        page.locator(".trouble").get_by_text("What to do").wait_for()
        assert "\nWhat to do" in page.locator(".trouble").inner_text()
        page.get_by_role("link", name="Events").click()
        page.locator(".events tbody tr").first.wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        ends = "() => [...document.querySelectorAll('.events td')].map((e) => e.getBoundingClientRect().right)"
        assert max(page.evaluate(ends)) <= 375
        page.close()


def test_scores_and_their_intervals_fit_into_a_window_of_1280_pixels(browser, address):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}#/compare?sweep=both")
    page.locator(".problem .interval").first.wait_for()
    wide = page.locator(".problem details[open] .wide").first
    assert wide.evaluate("(e) => e.scrollWidth <= e.clientWidth")
    page.close()


def test_a_dot_of_the_federation_opens_its_client(page, folder):
    page.evaluate(f"() => {{ location.hash = '#/run/{run_named(folder, 'terraform')}/federation' }}")
    dots = page.locator("canvas[aria-label^='Class imbalance']")
    dots.focus()
    page.keyboard.press("ArrowRight")
    client = re.match(r"Client (\d+)", dots.locator("xpath=../..").locator(".cell-words").inner_text()).group(1)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=f"Client {client}", exact=True).wait_for()


def test_a_store_that_goes_away_is_told_and_comes_back(browser, tmp_path):
    folder = tmp_path / "gone"
    muster.run(muster.Experiment(name="short", rounds=1), 0, store=folder)
    command = [sys.executable, "-m", "muster.cli.main", "ui", "--workspace", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        page = browser.new_page()
        page.goto(server.stdout.readline().strip())
        page.get_by_role("link", name="short").wait_for()
        folder.rename(tmp_path / "away")
        page.locator("#trouble").get_by_text("there is no store").wait_for()
        (tmp_path / "away").rename(folder)
        page.locator("#trouble").wait_for(state="hidden")
        page.get_by_role("link", name="short").wait_for()
        server.kill()
        page.get_by_text("not connected").wait_for()
        page.locator("#trouble").get_by_text("server does not answer").wait_for()
        page.evaluate("() => { location.hash = '#/compare' }")
        page.get_by_text("This view appears by itself once the server answers").wait_for()
        page.close()
    finally:
        server.kill()
        server.wait()


def test_the_menu_of_columns_closes(page):
    menu = page.locator("details.menu")
    menu.locator("summary").press("Enter")
    menu.get_by_role("checkbox").first.focus()
    page.keyboard.press("Escape")
    assert menu.get_attribute("open") is None
    assert page.evaluate("() => document.activeElement.textContent") == "Columns"
    menu.locator("summary").click()
    page.get_by_role("heading", name="Runs").click()
    assert menu.get_attribute("open") is None


def test_a_training_of_the_timeline_opens_its_client(page, folder):
    page.evaluate("(place) => { location.hash = place }", f"#/run/{run_named(folder, EVIL)}/timeline")
    page.locator(".stage canvas[aria-label^=Timeline]").focus()
    page.keyboard.press("ArrowRight")
    client = re.match(r"Client (\d+)", page.locator(".cell-words").inner_text()).group(1)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=f"Client {client}", exact=True).wait_for()


def test_who_is_served_badly_comes_first(page, folder):
    page.evaluate("(place) => { location.hash = place }", f"#/run/{run_named(folder, 'terraform')}/clients")
    page.locator("th[aria-sort=ascending]", has_text="accuracy").wait_for()
    shown = page.locator(".grid tbody tr:not(.gap) td:nth-child(2)").all_inner_texts()
    values = [float(text.rstrip(" %")) for text in shown if text != "–"]
    assert values == sorted(values)
    assert values[0] < values[-1]


def test_an_address_that_was_cut_short_is_no_error(page):
    page.evaluate("() => { location.hash = '#/run/%E0%A4%A' }")
    page.get_by_text("there is no run").wait_for()


def test_an_odd_run_is_told_as_it_is(browser, tmp_path):
    """A loss beyond all counting has an axis, and a curve that ends early does not claim a value at the end."""
    muster.run(muster.Experiment(name="odd", rounds=6), 0, store=tmp_path)
    with Store(tmp_path) as store:
        store.connection.execute("UPDATE metrics SET value = NULL WHERE round > 4 AND name LIKE '%accuracy%'")
        store.connection.execute("UPDATE metrics SET value = 8e36 WHERE round = 6 AND name = 'loss'")
    with serving(tmp_path) as address:
        page = browser.new_page(viewport={"width": 375, "height": 800})
        page.goto(address)
        row = page.locator(".grid tbody tr", has=page.get_by_role("link", name="odd"))
        assert row.locator("td:nth-child(2)").inner_text().startswith("✓"), (
            "its state, where there is no room for words"
        )
        row.get_by_role("link").click()
        legend = page.locator(".chart").first.locator(".u-legend tr", has_text="accuracy").first
        legend.get_by_text("(last at 4)").wait_for()
        assert "last at" not in page.locator(".chart").last.inner_text()
        charts = page.locator(".chart .u-over")
        assert charts.count() == 2
        page.evaluate("() => { location.hash += '/map' }")
        page.locator(".cells canvas").wait_for()
        page.close()


def test_long_names_are_not_cut_to_the_same_beginning(browser, tmp_path):
    for seed, alpha in enumerate((0.3, 3.0)):
        name = f"diversity-score, alpha={alpha}"
        muster.run(muster.Experiment(name=name, rounds=1, seed=seed), 0, store=tmp_path)
    with serving(tmp_path) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        page.get_by_role("link", name="diversity-score").first.wait_for()
        cut = page.evaluate(
            "() => [...document.querySelectorAll('.grid tbody td')]"
            ".filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.textContent)"
        )
        assert cut == []
        page.close()
