r"""Formulas as MathML, written when the site is built: browsers show them without a script and without a network.

Pages have LaTeX between dollars, which viewers of files typeset too. What the converter cannot read it passes on
as text (`<mi>\foo</mi>`) or as MathML that means nothing: here that ends the build.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.logging import get_node_location
from sphinx.util.math import get_node_equation_number

Element = ElementTree.Element

#: How many parts each of these has.
PARTS = {"mfrac": 2, "mroot": 2, "msub": 2, "msup": 2, "munder": 2, "mover": 2, "msubsup": 3, "munderover": 3}
#: Scripts beside a base → below and above it.
LIMITS = {"msub": "munder", "msup": "mover", "msubsup": "munderover"}
#: What may be an identifier; everything else that the converter calls one is an operator.
LETTERS = re.compile(r"[\w′…∞%]+")
SIGNS = {"~": "∼", "⧵": "∖"}
OPENING = frozenset("([{⟨⌊⌈")
#: The converter does not say that these open or close something, nor that they keep their height.
FENCES = frozenset("‖|{}⟨⟩⌊⌋⌈⌉")
#: What may follow a formula without a space: a comma, or the end of "$k$-th".
CLOSING = re.compile(r"^[-–)\],.;:]*\w*")


class FormulaError(SphinxError):
    category = "Formula that cannot be typeset"


def mathml(latex: str, *, display: bool = False) -> str:
    """The `<math>` element of a formula, with the LaTeX as its alternative text."""
    try:
        source = convert(latex, display="block" if display else "inline")
        root = ElementTree.fromstring(source.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', ""))
    except Exception as error:  # the converter has a dozen kinds, and passes on a bare & as it is
        problem = f"{type(error).__name__}: {error}".rstrip(": ")
        raise FormulaError(f"${latex}$: {problem} (of environments use split or cases, not aligned)") from error
    if problem := _unreadable(latex, root):
        raise FormulaError(f"${latex}$: {problem}")
    _tidy(root, display)
    root.set("alttext", " ".join(latex.split()))
    return ElementTree.tostring(root, encoding="unicode")


def _unreadable(latex: str, root: Element) -> str:
    """What in this formula has not been understood; empty if all has."""
    braces = re.sub(r"\\.", "", latex)
    if braces.count("{") != braces.count("}"):
        return "braces do not match"
    for element in root.iter():
        if "\\" in (element.text or ""):
            return f"unknown command {element.text}"
        if element.tag == "mo" and not element.text:
            return "an operator without a name (\\operatorname* is not known)"
        if element.get("linebreak"):
            return "a line break outside of an environment such as split"
        if len(element) != PARTS.get(element.tag, len(element)):
            return f"a part of <{element.tag}> is missing"
    return ""


def _tidy(root: Element, display: bool) -> None:
    """Operators, names and limits as LaTeX sets them, where browsers would do otherwise."""
    for element in root.iter():
        text = element.text or ""
        if element.tag == "mi" and not LETTERS.fullmatch(text) and text:
            element.tag, element.text = "mo", SIGNS.get(text, text)
        elif element.tag == "mo" and text.isalpha() and text.isascii():
            element.tag = "mi"  # max, argmin: an unknown operator would stand apart from its argument
        elif element.tag == "mi" and len(text) == 1 and "Α" <= text <= "Ω":
            element.set("mathvariant", "normal")
        if element.tag == "mo" and element.text in FENCES and element.get("stretchy") != "true":
            # Only \left and \right make a fence as high as what it holds.
            element.attrib |= {"stretchy": "false", "lspace": "0", "rspace": "0"}
        elif element.tag == "mo" and element.text in ("/", ".", "…"):
            element.attrib |= {"lspace": "0", "rspace": "0"}
        # A sum moves its limits to the side by itself where it is small, a name does not.
        if element.tag in LIMITS and element[0].text in ("∑", "∏", *(("max", "min") if display else ())):
            element.tag = LIMITS[element.tag]
    for row in root.iter("mrow"):
        for left, right in reversed(list(pairwise(row))):
            if _stand_apart(left, right):
                row.insert(list(row).index(right), Element("mspace", width="0.167em"))
            if right.text in ("−", "+") and left.tag == "mo" and left.text not in (*")]⟩⌋⌉}", "‖", "|"):
                right.set("form", "prefix")  # a sign, not a difference


def _stand_apart(left: Element, right: Element) -> bool:
    """Whether there is a thin space between a name such as log and its neighbour."""
    if _is_name(left):
        first = right[0] if right.tag == "mrow" and len(right) else right
        return first.tag not in ("mo", "mspace") or (first.text in FENCES and first.text not in OPENING)
    return _is_name(right) and left.tag not in ("mo", "mspace")


def _is_name(element: Element) -> bool:
    if element.tag in (*LIMITS, *LIMITS.values()):
        return _is_name(element[0])
    return element.tag == "mi" and len(element.text or "") > 1 and (element.text or "").isalpha()


class WithPunctuation(SphinxPostTransform):
    """Keeps a formula together with a bracket before it and a comma after it: browsers end lines there."""

    default_priority = 500
    formats = ("html",)

    def run(self, **_: Any) -> None:
        for formula in list(self.document.findall(nodes.math)):
            parent = formula.parent
            before, after = _neighbour(parent, formula, -1), _neighbour(parent, formula, +1)
            words, rest = before.rstrip("(["), CLOSING.sub("", after)
            opening, closing = before[len(words) :], after[: len(after) - len(rest)]
            if not opening and not closing:
                continue
            at = parent.index(formula)
            kept = nodes.inline("", nodes.Text(opening), formula, nodes.Text(closing), classes=["formula"])
            first, last = at - bool(before), at + 1 + bool(after)
            parent[first:last] = [nodes.Text(words), kept, nodes.Text(rest)]


def _neighbour(parent: nodes.Element, node: nodes.Node, step: int) -> str:
    """The text beside a node; empty if there is none."""
    at = parent.index(node) + step
    return str(parent[at]) if 0 <= at < len(parent) and isinstance(parent[at], nodes.Text) else ""


def _of(node: nodes.Element, *, display: bool) -> str:
    try:
        return mathml(node.astext(), display=display)
    except FormulaError as error:
        raise FormulaError(f"{get_node_location(node)}: {error}") from error


def visit_inline(self: Any, node: nodes.math) -> None:
    self.body.append(_of(node, display=False))
    raise nodes.SkipNode


def visit_display(self: Any, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append(_of(node, display=True) + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(WithPunctuation)
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
