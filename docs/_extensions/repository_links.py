"""Links of pages to files of the repository that are no pages (examples, studies, source) are shown as paths.

Read as files, pages link to `../studies/README.md` and the like. The site has only the pages: there such a link
becomes the path, so that nothing leads nowhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[2]
#: Folders of pages that have an index of their own on the site.
FOLDERS = {"docs/methods": "methods/index", "docs/results": "results/README"}


class RepositoryLinks(SphinxTransform):
    """Runs before references are resolved."""

    default_priority = 5

    def apply(self, **_: Any) -> None:
        page = Path(self.env.doc2path(self.env.docname)).parent
        for link in list(self.document.findall(addnodes.pending_xref)) + list(
            self.document.findall(addnodes.download_reference)
        ):
            target = str(link.get("reftarget", "")).split("#")[0]
            if not target or "://" in target:
                continue
            path = (page / target).resolve()
            if not path.exists():  # links to Markdown have lost their ending by now
                path = path.with_name(f"{path.name}.md")
            if not path.is_relative_to(ROOT) or not path.exists():
                continue  # a link that is really broken stays one, and the build says so
            inside = path.relative_to(ROOT).as_posix()
            if inside in FOLDERS:
                link["reftarget"], link["reftype"] = "/" + FOLDERS[inside], "myst"
                link["refdomain"], link["refdoc"] = None, self.env.docname
            elif self._is_page(path):
                continue
            else:
                shown = link.astext()
                text = shown if shown.endswith(inside) else f"{shown} ({inside})"
                link.replace_self(nodes.literal(text, text) if shown == inside else nodes.inline(text, text))

    def _is_page(self, path: Path) -> bool:
        docs = ROOT / "docs"
        if not path.is_relative_to(docs) or path.is_dir():
            return False
        if path.suffix != ".md":  # pictures and other files that the site takes along
            return True
        return path != docs / "README.md"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True}
