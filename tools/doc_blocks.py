"""The examples in the documentation: which are run by tests/docs/test_blocks_run.py, which are not, and why.

Blocks that are marked `python` or `sh` are examples. Every one is run, page by page, unless a comment before it,
which readers do not see, says why it cannot be:

    <!-- not run: needs a SuperLink -->
    <!-- not run, muster ui: it stays open -->      (only the commands that begin so)

Commands of Muster that are not run are still parsed: an option that does not exist is found there, too.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"((?:^ *<!--[^\n]*-->\n)*)^( *)```(python|sh)\n(.*?)^\2```", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- not run(?:, ([^:]+))?: (.+?) -->")
#: Any block: its language, which may be missing, and what stands in it.
_FENCED = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_BETWEEN = "\x1f"


@dataclass(frozen=True)
class Example:
    """One block of a page."""

    page: Path
    line: int
    language: str
    text: str
    #: How commands begin that are not run → why not; "" stands for all of the block.
    not_run: dict[str, str]

    @property
    def is_run(self) -> bool:
        return "" not in self.not_run

    def commands(self) -> list[tuple[list[str], str]]:
        """The words of every command of Muster in a block of commands, and why it is not run ("": it is)."""
        whole = self.text.replace("\\\n", " ")
        kept = [line for line in whole.splitlines() if self.why_not(line) is None or line.startswith("muster")]
        if not self.is_run:
            kept = [line for line in kept if line.startswith(("muster", "for ", "  muster", "done"))]
        return [(words, self.why_not(" ".join(words)) or "") for words in expanded("\n".join(kept))]

    def why_not(self, command: str) -> str | None:
        starts = (start for start in self.not_run if command.startswith(start))
        return next((self.not_run[start] for start in starts), None)


def pages() -> list[Path]:
    """Every page that people read."""
    folders = ("docs", "studies", "examples", "benchmarks")
    found = [*ROOT.glob("*.md"), *(page for folder in folders for page in sorted((ROOT / folder).rglob("*.md")))]
    return [page for page in found if page.name != "CHANGELOG.md"]


def examples(page: Path) -> list[Example]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        marks, indent, language, content = match.groups()
        not_run = {start.strip(): why for start, why in _MARK.findall(marks)}
        content = re.sub(rf"^{indent}", "", content, flags=re.MULTILINE)
        found.append(Example(page, text[: match.start(4)].count("\n") + 1, language, content, not_run))
    return found


def hidden_commands(page: Path) -> list[str]:
    """Commands in blocks without a language, where nobody would run them."""
    fenced = _FENCED.findall(page.read_text(encoding="utf-8"))
    plain = [line for language, text in fenced if not language.strip() for line in text.splitlines()]
    return [line for line in plain if line.startswith(("muster ", "$ muster "))]


def expanded(script: str) -> list[list[str]]:
    """The commands of Muster that a shell would give for a script, loops included; nothing else may be in it."""
    record = f"muster() {{ printf 'muster'; printf '{_BETWEEN}%s' \"$@\"; echo; }}\n"
    done = subprocess.run(
        ["/bin/bash", "-e", "-c", record + script],
        env={"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"only commands of Muster can be run: {done.stderr.strip()}")
    return [line.split(_BETWEEN) for line in done.stdout.splitlines()]


def main() -> None:
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for example in (example for page in pages() for example in examples(page)):
        if example.language == "python":
            counts["blocks of Python, " + ("run" if example.is_run else "not run")] += 1
            reasons.update(example.not_run.values())
            continue
        for _, why in example.commands():
            counts["commands, " + ("parsed only" if why else "run")] += 1
            reasons.update([why] if why else [])
    for name, count in sorted(counts.items()):
        print(f"{count:4} {name}")
    print("Why not:")
    for why, count in reasons.most_common():
        print(f"{count:4} {why}")


if __name__ == "__main__":
    main()
