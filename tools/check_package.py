"""Builds what people install, installs it in a fresh environment, and uses it outside the clone: `make package`.

The fresh environment has the wheel and nothing else of its own. Libraries are those of the environment that runs
this script, which it sees through a path file: PyTorch alone would take longer to install than all the rest takes.
That libraries are declared is checked by their imports, and that their lowest versions work by `make lowest`.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "package"
#: Imports whose distribution has another name.
DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow"}


def declared() -> set[str]:
    """The libraries that are always installed with Muster."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {re.split(r"[<>=!~\[; ]", line)[0].lower() for line in project["dependencies"]}


def imported(source: Path) -> Iterator[tuple[str, Path]]:
    """What modules import as soon as they are imported themselves: (top-level name, file)."""
    for path in sorted(source.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in _at_once(tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name.split(".")[0], path) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.split(".")[0], path


def _at_once(node: ast.AST) -> Iterator[ast.AST]:
    """Statements outside functions, and outside `if TYPE_CHECKING:`, whose other branch counts."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from _at_once(other)
            continue
        yield child
        yield from _at_once(child)


def undeclared() -> list[str]:
    """Files that cannot be imported with what is declared; files of an extra are meant to need it."""
    known, found = declared(), []
    for name, path in imported(ROOT / "src" / "muster"):
        room = path.relative_to(ROOT / "src" / "muster").parts[0]
        if name in sys.stdlib_module_names or name == "muster" or room in ("flower", "ui", "tracking"):
            continue
        if DISTRIBUTIONS.get(name, name).lower().replace("_", "-") not in known:
            found.append(f"{path.relative_to(ROOT)} imports {name}")
    return found


def missing_files(wheel: Path) -> list[str]:
    """Files of the package that a wheel lacks."""
    with zipfile.ZipFile(wheel) as archive:
        there = set(archive.namelist())
    source = ROOT / "src"
    wanted = (path.relative_to(source).as_posix() for path in (source / "muster").rglob("*") if path.is_file())
    return [name for name in wanted if "__pycache__" not in name and name not in there]


def build() -> tuple[Path, Path]:
    """(sdist, wheel), the wheel from what is in the sdist, as an installer makes it."""
    shutil.rmtree(BUILD, ignore_errors=True)
    # Without an environment of its own, which would be made twice: setuptools is one of the tools for developers.
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(BUILD / "dist"), str(ROOT)])
    (sdist,), (wheel,) = (list((BUILD / "dist").glob(ending)) for ending in ("*.tar.gz", "*.whl"))
    return sdist, wheel


def installed(wheel: Path) -> Path:
    """The folder with the commands of a fresh environment that has the wheel."""
    place = BUILD / "environment"
    venv.create(place, with_pip=True, clear=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    # Only the folder: what is installed there as a link to a clone (path files) does not come with it.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    commands = place / "bin"
    _run([str(commands / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)])
    return commands


def use(commands: Path) -> None:
    """What a new user does, in an empty folder."""
    folder = BUILD / "elsewhere"
    folder.mkdir()
    where = _run([str(commands / "python"), "-c", "import muster; print(muster.__file__)"], folder)
    if not Path(where.strip()).is_relative_to(BUILD):
        raise SystemExit(f"not the wheel was imported, but {where.strip()}")
    muster = str(commands / "muster")
    for words in (
        ["--version"],
        ["list"],
        ["quickstart", "--rounds", "2", "--workers", "0"],
        ["init", "study"],
        ["run", "study/experiment.toml", "--rounds", "1", "--workers", "0"],
        ["runs"],
        ["report", "-o", "report.html"],
        ["reproduce", "terraform"],
        ["show", "terraform-cifar10-1"],
    ):
        print("muster", *words, flush=True)
        _run([muster, *words], folder)
    for file in ("muster-quickstart/comparison.png", "report.html", "runs/muster.db"):
        if not (folder / file).stat().st_size:
            raise SystemExit(f"{file} is empty")


def _run(command: list[str], folder: Path = ROOT) -> str:
    hidden = ("PYTHONPATH", "MUSTER_DATA", "MUSTER_WORKSPACE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> None:
    if problems := undeclared():
        raise SystemExit("not among the dependencies in pyproject.toml:\n" + "\n".join(problems))
    sdist, wheel = build()
    if lacking := missing_files(wheel):
        raise SystemExit(f"{wheel.name} lacks {', '.join(lacking)}")
    with tarfile.open(sdist) as archive:
        if not any(name.endswith("/LICENSE") for name in archive.getnames()):
            raise SystemExit(f"{sdist.name} has no license")
    use(installed(wheel))
    print(f"{sdist.name} and {wheel.name} are complete, and work outside the clone")


if __name__ == "__main__":
    main()
