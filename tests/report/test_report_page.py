"""The page: well-formed, alone, safe, complete; its recipe makes the same runs again."""

from __future__ import annotations

import base64
import io
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from muster.config.experiment import from_dict, load
from muster.core.errors import ConfigError, OutputError
from muster.experiment.sweep import load_sweep
from muster.report.compare import Options, compare
from muster.report.gallery import MAX_LINES, drawn, gallery, target
from muster.report.page import report_page, write_report
from muster.report.warnings import warnings
from muster.results.cases import cases
from muster.results.settings import nested, own_settings, recipe, shared_settings
from muster.server.origin import Origin

EVIL = ('<script>alert("1")</script>', "a\"b' onload='x' & $5$ `code` _")
VOID = {"meta", "img", "source", "br", "hr", "link", "input"}


class Checker(HTMLParser):
    """Keeps tags balanced, and remembers what a page refers to and says."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.tags, self.links, self.images, self.words = [], [], [], [], []
        self.ids = set()

    def handle_starttag(self, tag, attrs) -> None:
        facts = dict(attrs)
        assert not any(name.startswith("on") for name in facts), f"a script in {tag}"
        self.tags.append(tag)
        self.ids.add(facts.get("id"))
        self.links += [facts[name] for name in ("src", "href", "srcset", "action", "data") if name in facts]
        if tag == "img":
            self.images.append(facts)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert not checker.open
    return checker


@pytest.fixture
def runs(made):
    found = [
        made(
            name, seed, [0.2, 0.4 + 0.1 * seed, 0.6 + 0.1 * seed], training={"lr": 0.1}, selection={"method": name}
        )
        for name in EVIL
        for seed in (0, 1)
    ]
    found[0].records[1].trainings[0].rejected[5] = "<i>not finite</i>"
    return found


def _dense(text: str) -> str:
    """Without what line breaks and `code` marks change."""
    return "".join(text.split()).replace("`", "")


def test_the_page(runs, tmp_path):
    path = write_report(runs, tmp_path / "deep" / "report.html", title="<b>Title</b>")
    page = path.read_text(encoding="utf-8")
    checker = read(page)
    # Alone: nothing is fetched, nothing is run.
    assert not {"script", "iframe", "link", "object", "embed", "form"} & set(checker.tags)
    assert all(link.startswith(("data:image/png;base64,", "data:text/plain", "#")) for link in checker.links)
    assert not re.search(r"https?://|url\(|@import", re.sub(r"data:[^\"]+", "", page))
    assert {link[1:] for link in checker.links if link.startswith("#")} <= checker.ids
    # Every picture can be read, and is told.
    assert len(checker.images) >= 20
    for image in checker.images:
        assert len(image["alt"]) > 20
        content = base64.b64decode(image["src"].partition(",")[2])
        assert Image.open(io.BytesIO(content)).size[0] > 300
    grounds = [image["class"] for image in checker.images]
    assert grounds == ["light", "dark"] * (len(grounds) // 2)
    # Everything is named, and nothing of it is markup.
    for name in EVIL:
        assert _dense(checker.text).count(_dense(name)) > 4
    assert "1 update was refused" in checker.text
    assert "<i>not finite</i> (1 ×)" in checker.text
    for heading in (
        "What was run",
        "Warnings",
        "Tables",
        "Pictures",
        "Settings",
        "Environment",
        "How to repeat it",
    ):
        assert f">{heading}</h2>" in page
    assert "<title>&lt;b&gt;Title&lt;/b&gt;</title>" in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_it_opens_with_who_is_best(made, monkeypatch):
    monkeypatch.setattr("muster.report.page.gallery", lambda _: [])
    runs = [
        made(name, 0, [0.2, end], selection={"method": name}) for name, end in (("random", 0.5), ("oort", 0.7))
    ]
    text = read(report_page(runs, title="T")).text
    assert text.index("oort is best with 70.0 % accuracy, 20.0 points ahead of random.") < text.index("Tables")
    other = made("oort", 0, [0.2, 0.9], selection={"method": "oort"}, partition={"alpha": 9.0})
    text = read(report_page([*runs, other])).text
    assert "oort is best with 70.0 % accuracy, 20.0 points ahead of random." in text, "of one problem"
    assert "oort reaches 90.0 % accuracy." in text, "of the other, where it is alone"


def test_cases_can_be_taken_out_of_the_tables(runs, made, monkeypatch):
    monkeypatch.setattr("muster.report.page.gallery", lambda _: [])
    page = report_page(runs)
    for place in (0, 1):
        assert f'<input type="checkbox" id="case-{place}" checked>' in page
        assert f":root:has(#case-{place}:not(:checked)) .case-{place} {{ display: none; }}" in page
        assert page.count(f'<tr class="case-{place}">') >= 2 + 5, "its runs, and its row of most tables"
    assert "<fieldset" not in report_page([made()]), "nothing to choose"


def test_every_run_has_a_row(runs, monkeypatch):
    monkeypatch.setattr("muster.report.page.gallery", lambda _: [])
    origin = Origin("0123456789abcdef", "complete", "", "0.1 (abc)", {"torch": "9.9"}, 0.0, 1e9, 12.5)
    named = [replace(run, name=f"run-{n}", provenance=origin) for n, run in enumerate(runs)]
    text = read(report_page(named)).text
    for number in range(4):
        assert f"run-{number} " in text
    for fact in ("01234567", "12.5 s", "2001-09-09", "0.1 (abc)", "9.9", "60.0%"):
        assert fact in text


def test_unfinished_runs_are_named_but_not_compared(runs, made, monkeypatch):
    monkeypatch.setattr("muster.report.page.gallery", lambda _: [])
    error = "cannot go on"
    begun = replace(
        made("begun", accuracies=[0.9], complete=False, rounds=7, selection={"method": "x"}),
        provenance=Origin(status="failed", error=error),
    )
    text = read(report_page([*runs, begun])).text
    assert "begun, seed 0: failed after 1 of 7 rounds. cannot go on" in text
    assert "1 more of the 5 runs are not compared" in text
    with pytest.raises(ConfigError, match="nothing to compare"):
        report_page([begun])
    assert "begun" in read(report_page([begun], Options(unfinished=True))).text


def test_a_file_that_cannot_be_written(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("muster.report.page.gallery", lambda _: [])
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        write_report(runs, tmp_path / "file" / "report.html")


# --- pictures --------------------------------------------------------------------------------------------


def test_which_pictures_there_are(made):
    runs = [
        made(name, seed, seconds=10.0, selection={"method": name, "eta": eta}, selections=[[[0, 1], [1]]] * 3)
        for name, eta in (("terraform", 2), ("terraform", 4), ("random", 4))
        for seed in (0, 1)
    ]
    for run in runs:
        run.records[-1].client_accuracy = np.ones(6, dtype=np.float32)
    comparison = compare(runs)
    pictures = gallery(comparison)
    sections = [picture.section for picture in pictures]
    assert {section: sections.count(section) for section in sections} == {
        "Curves": 5,
        "Work until the target": 4,
        "Fairness": 1,
        "Clients": 2,
        "Who took part when": 3,
        "Groups of clients": 3,
        "Sensitivity": 1,
    }
    assert "At the end: terraform (eta=2) 80.0 %" in pictures[0].alt
    assert target(comparison.alone, comparison.options) == pytest.approx(0.8), (
        "the baseline's end, as in the tables"
    )


def test_of_many_cases_the_best_are_drawn(made):
    runs = [made(f"m{n}", accuracies=[n / 20], selection={"method": f"m{n}"}) for n in range(MAX_LINES + 3)]
    assert [case.name for case in drawn(compare(runs).alone, "accuracy")] == [
        f"m{n}" for n in range(3, MAX_LINES + 3)
    ]


# --- warnings --------------------------------------------------------------------------------------------


def test_nothing_to_warn_of(made):
    assert warnings([made()]) == []


def test_what_went_wrong_is_told(made):
    run = made(complete=False, rounds=9, selections=[[[0, 1]], [[2]], [[3]]])
    first, second, third = run.records
    first.trainings[0].rejected = {2: "too long", 3: "too long"}
    second.trainings[0].failed = {4: "gone"}
    third.trainings[0].clients = []
    third.events = ["client 5 joined"]
    other = replace(made("b"), provenance=Origin(code_version="1-dirty", environment={"torch": "1"}))
    run = replace(run, provenance=Origin(code_version="2", environment={"torch": "2"}))
    assert warnings([run, other]) == [
        "a, seed 0: not complete after 3 of 9 rounds.",
        "a, seed 0: 2 updates were refused (33.3% of all trainings): too long (2 ×).",
        "a, seed 0: 1 client failed to answer (16.7% of all trainings): gone (1 ×).",
        "a, seed 0: the model stayed as it was in round 3.",
        "a, seed 0: round 3: client 5 joined.",
        "The runs were made with different versions of the code: 1-dirty, 2.",
        "Some runs were made with code that was not committed: the version alone does not bring it back.",
        "The runs were made in different environments (below): last digits may differ between them.",
    ]


# --- settings and recipes --------------------------------------------------------------------------------


def described(**values):
    return from_dict({"rounds": 4, "training": {"lr": 0.1}} | values)


def as_results(made, experiments):
    return [replace(made(e.title, e.seed), config=e.described(), name=e.title) for e in experiments]


METHODS = [
    {"method": "random", "clients_per_round": 4},
    {"method": "terraform", "clients_per_round": 4, "min_clients": 3},
    {"method": "terraform", "clients_per_round": 8, "quartiles": [0.1, 0.9]},
]


def test_shared_and_own_settings(made):
    results = as_results(made, [described(selection=method, seed=seed) for method in METHODS for seed in (0, 1)])
    shared = shared_settings(results)
    # A default that has changed is always named, so that runs of before and after are told apart.
    assert shared["training"] == {"lr": 0.1, "batch_size": 16}
    assert "selection" not in shared
    assert own_settings(results[2], results) == {
        "seed": 0,
        "selection.method": "terraform",
        "selection.clients_per_round": 4,
        "selection.min_clients": 3,
    }
    assert nested({"a.b.c": 1, "d": 2}) == {"a": {"b": {"c": 1}}, "d": 2}


def test_a_recipe_is_a_sweep_that_makes_the_same_runs(made, tmp_path):
    experiments = [
        described(selection=method, seed=seed, name=f"it's {n}", partition={"scheme": "iid", "clients": 9})
        for n, method in enumerate(METHODS)
        for seed in (3, 5)
    ]
    again = recipe(cases(as_results(made, experiments)))
    path = tmp_path / again.file_name
    path.write_text(again.content)
    assert again.commands[0] == "muster sweep repeat.toml --workspace repeated"
    made_again = {e.fingerprint for e in load_sweep(path).experiments()}
    assert made_again == {e.fingerprint for e in experiments}


def test_with_different_seeds_it_is_single_runs(made, tmp_path):
    experiments = [described(selection=METHODS[n], seed=seed) for n, seed in ((0, 0), (0, 1), (1, 0), (2, 7))]
    again = recipe(cases(as_results(made, experiments)))
    (tmp_path / again.file_name).write_text(again.content)
    found = set()
    for command in again.commands:
        muster, run, file, *options = shlex.split(command)
        assert (muster, run, options[::2]) == ("muster", "run", ["--set"] * (len(options) // 2))
        found.add(load(tmp_path / file, options[1::2]).fingerprint)
    assert found == {e.fingerprint for e in experiments}


@pytest.mark.parametrize("word", ["plain", "true", "inf", "a b", "it's", "1e3", "x-1"])
def test_words_survive_the_command_line(made, tmp_path, word):
    results = [
        replace(made(), config={"seed": seed, "data": {"source": "digits", "x": value}})
        for seed, value in ((0, word), (1, "other"))
    ]
    (command, _) = recipe(cases(results)).commands
    options = shlex.split(command)[3:][1::2]
    (tmp_path / "e.toml").write_text('[data]\nsource = "digits"\n')
    assert load(tmp_path / "e.toml", options).data["x"] == word


def test_parts_made_in_python_have_no_recipe(made, runs, monkeypatch):
    monkeypatch.setattr("muster.report.page.gallery", lambda _: [])
    result = made(model={"object": "MyModel"})
    assert recipe(cases([result])) is None
    assert "objects made in Python" in read(report_page([result])).text


@pytest.mark.slow
def test_a_page_of_forty_long_runs_stays_small(made, tmp_path):
    rng = np.random.default_rng(0)
    runs = []
    for method in range(20):
        for seed in range(2):
            chosen = [[np.sort(rng.choice(1000, 20, replace=False)).tolist()] for _ in range(500)]
            accuracies = np.clip(
                0.8 * (1 - np.exp(-np.arange(500) / 80)) + rng.normal(0, 0.02, 500), 0, 1
            ).tolist()
            run = made(f"method-{method}", seed, accuracies, selections=chosen, clients=1000, seconds=30.0)
            run.records[-1].client_accuracy = rng.random(1000).astype(np.float32)
            runs.append(run)
    path = write_report(runs, tmp_path / "report.html")
    assert path.stat().st_size < 5_000_000
    assert "The 12 best of 20 cases" in read(path.read_text(encoding="utf-8")).text
