"""The documentation as a site: `make docs` builds it into build/site, with a search that needs no network."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def _code() -> str:
    """Identifies what tutorials are run with: the package's source, libraries, Python."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (HERE.parent / "constraints.txt", *sorted((HERE.parent / "src").rglob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


sys.path.insert(0, str(HERE / "_extensions"))

from muster._version import __version__  # noqa: E402

project = "Muster"
author = "the Muster developers"
copyright = "2026, the Muster developers"
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "repository_links",
    "mathml",
]
# Pages are Markdown; those of tutorials/ are also notebooks, which the build runs.
source_suffix = {".md": "myst-nb"}
root_doc = "index"
# README.md is the same table of contents for those who read the pages as files.
exclude_patterns = ["README.md", "_extensions"]

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 4

# Tables that `muster compare --markdown` wrote have headings of the third level: pages keep them as they are.
suppress_warnings = ["myst.header"]

# Tutorials are run unless neither they nor what they run with has changed, each in a folder that is thrown away; a
# cell that fails, fails the build. Their tests leave what they ran in this cache: `make docs` runs each once. What
# they show is made by this very code, so nothing of it is in the repository.
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / "build" / "notebook-cache" / _code())
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True

# Our attributes are explained by `#:` comments, which autodoc reads; order and types are those of the source.
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}

html_theme = "furo"
html_title = f"Muster {release}"
html_static_path = ["_static"]
html_css_files = ["notebooks.css", "formulas.css"]
html_math_renderer = "mathml"
html_theme_options = {"navigation_with_keys": True}
