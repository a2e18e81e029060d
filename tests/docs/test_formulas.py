"""Formulas of the pages can be typeset: as MathML on the site, and by viewers that show the files."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.docutils import docutils_namespace, patch_docutils

ROOT = Path(__file__).parents[2]
EXTENSIONS = ROOT / "docs" / "_extensions"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
#: Viewers take these for escapes of Markdown: \lbrace, \lVert and \quad say the same.
ESCAPE = re.compile(r"\\[!-/:-@\[-`{-~]")


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


extension = load(EXTENSIONS / "mathml.py")


def formulas(page: Path) -> list[tuple[str, bool]]:
    """The LaTeX of every formula of a page, and whether it stands on lines of its own."""
    parser = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin)
    tokens = [
        part for token in parser.parse(page.read_text(encoding="utf-8")) for part in (token.children or [token])
    ]
    return [(token.content, "block" in token.type) for token in tokens if token.type.startswith("math_")]


def test_every_formula_of_the_pages_can_be_read():
    wrong, count = [], 0
    for page in PAGES:
        for latex, display in formulas(page):
            count += 1
            try:
                extension.mathml(latex, display=display)
            except extension.FormulaError as error:
                wrong.append(f"{page.name}: {error}")
            if ESCAPE.search(latex):
                wrong.append(f"{page.name}: {latex} has a sign that viewers of files take for an escape")
    assert wrong == []
    assert count > 900


def test_dollars_stand_where_viewers_of_files_expect_them():
    """No space inside, no letter or digit outside; a formula never goes over the end of a line."""
    wrong = []
    for page in PAGES:
        text = re.sub(r"```.*?```|`[^`\n]*`|\$\$.*?\$\$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for line in text.splitlines():
            proper = re.sub(r"(?<![\w$])\$(?=[^\s$])[^$]*(?<=\S)\$(?![\w$])", "", line)
            if "$" in proper:
                wrong.append(f"{page.name}: {line}")
    assert wrong == []


@pytest.mark.parametrize(
    ("latex", "problem"),
    [
        (r"a + \unknown{b}", r"unknown command \\unknown"),
        (r"\frac{a}", "a part of <mfrac> is missing"),
        (r"w_{k", "braces do not match"),
        (r"\operatorname*{arg\,max}_k", "operator without a name"),
        (r"a = b \\ c = d", "line break outside of an environment"),
        (r"\begin{aligned} a &= b \end{aligned}", "use split or cases"),
        (r"a_b_c", "DoubleSubscripts"),
    ],
)
def test_what_cannot_be_read_is_an_error(latex, problem):
    with pytest.raises(extension.FormulaError, match=problem):
        extension.mathml(latex)


def test_a_formula_is_mathml_with_its_source_as_alternative_text():
    root = ElementTree.fromstring(extension.mathml("a_k <\n  b", display=True))
    assert (root.tag, root.get("display"), root.get("alttext")) == ("math", "block", "a_k < b")
    assert [part.text for part in root.iter() if part.text] == ["a", "k", "<", "b"]
    assert ElementTree.fromstring(extension.mathml("a")).get("display") == "inline"


def element(latex: str, display: bool = False) -> ElementTree.Element:
    return ElementTree.fromstring(extension.mathml(latex, display=display))


def parts(latex: str, display: bool = False) -> list[tuple[str, str | None]]:
    return [(part.tag, part.text) for part in element(latex, display)[0]]


def test_names_stand_upright_and_apart():
    space = ("mspace", None)
    assert parts(r"\alpha \log x") == [("mi", "α"), space, ("mi", "log"), space, ("mi", "x")]
    assert parts(r"\operatorname{Var}(x)") == [("mi", "Var"), ("mo", "("), ("mi", "x"), ("mo", ")")]
    assert [part.get("mathvariant") for part in element(r"\Delta x").iter("mi")] == ["normal", None]


def test_signs_are_operators():
    assert parts(r"x \sim \lfloor y \rfloor") == [
        *(("mi", "x"), ("mo", "∼"), ("mo", "⌊")),
        *(("mi", "y"), ("mo", "⌋")),
    ]
    forms = [part.get("form") for part in element(r"a = -b - (-c)").iter("mo") if part.text == "−"]
    assert forms == ["prefix", None, "prefix"]
    (slash,) = (part for part in element("a/b").iter("mo"))
    assert (slash.get("lspace"), slash.get("rspace")) == ("0", "0")


def test_a_fence_is_as_high_as_its_content_only_where_it_is_told_to_be():
    fences = [
        part.get("stretchy")
        for latex in (r"\lVert x \rVert", r"\left\lVert x \right\rVert")
        for part in element(latex).iter("mo")
    ]
    assert fences == ["false", "false", "true", "true"]


def test_limits_are_below():
    assert parts(r"\min_k x", display=True)[0][0] == "munder"
    assert parts(r"\min_k x")[0][0] == "msub"
    # A sum has them below everywhere: browsers move them where it is small.
    assert [part.tag for part in element(r"\left( \sum_k x \right)", display=True).iter("munder")] == ["munder"]


def built(folder: Path, page: str) -> str:
    """The page as a site with this extension alone shows it."""
    source = folder / "source"
    source.mkdir()
    (source / "index.md").write_text(f"# Page\n\n{page}", encoding="utf-8")
    settings = {
        "extensions": ["myst_parser", "mathml"],
        "myst_enable_extensions": ["dollarmath"],
        "html_math_renderer": "mathml",
        "html_theme": "basic",
    }
    with patch_docutils(), docutils_namespace():
        places = (source, None, folder / "site", folder / "trees")
        Sphinx(*places, "html", settings, status=None, warningiserror=True).build()
    return (folder / "site" / "index.html").read_text(encoding="utf-8")


@pytest.fixture
def _known(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXTENSIONS), *sys.path])
    monkeypatch.delitem(sys.modules, "mathml", raising=False)
    yield
    sys.modules.pop("mathml", None)


@pytest.mark.usefixtures("_known")
def test_the_site_has_formulas_without_scripts(tmp_path):
    lines = r"\begin{split} a &= b \\ c &= d \end{split}"
    html = built(tmp_path, f"Inline $w_k$.\n\n$$\nx^2\n$$ (square)\n\n$$\n{lines}\n$$\n\nSee {{eq}}`square`.\n")
    assert '<math display="inline" alttext="w_k">' in html
    assert html.count('<math display="block"') == 2
    assert html.count("<mtr>") == 2
    assert 'id="equation-square"' in html
    assert '<span class="eqno">(1)' in html
    assert 'href="#equation-square">(1)</a>' in html
    assert not re.search(r"<script[^>]*://", html)


@pytest.mark.usefixtures("_known")
def test_a_line_ends_neither_before_a_comma_nor_after_a_bracket(tmp_path):
    html = built(tmp_path, "One ($a$, two), $b$-th *$c$* $d$\nand ($e$) ($f$).\n")
    shown = re.sub(r"<math.*?alttext=\"(.)\".*?</math>", r"\1", html)
    (line,) = re.findall(r"<p>(One.*?)</p>", shown, flags=re.DOTALL)
    keep = '<span class="formula">{}</span>'.format
    assert line == (f"One {keep('(a,')} two), {keep('b-th')} <em>c</em> d\nand {keep('(e)')} {keep('(f).')}")


@pytest.mark.usefixtures("_known")
def test_a_formula_that_cannot_be_read_ends_the_build(tmp_path):
    with pytest.raises(SphinxError, match=r"index.md:3: .*unknown command \\unknown"):
        built(tmp_path, r"Inline $\unknown$.")


def test_a_terminal_gets_no_latex():
    notes = load(ROOT / "tools" / "method_notes.py")
    assert notes.plain(r"reports $\lVert a_k \rVert_1$, and $c_k$") == "reports ‖a_k‖₁, and c_k"
    with pytest.raises(ValueError, match="a terminal cannot show"):
        notes.plain(r"costs $\frac{a}{b}$")
