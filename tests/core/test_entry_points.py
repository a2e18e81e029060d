"""Packages add methods by entry points, and classes are found by their names without importing PyTorch early."""

import os
import subprocess
import sys
import textwrap

import pytest

import muster
from muster.core import registry
from muster.core.errors import ConfigError
from muster.selection.base import selectors

PLUGIN = '''
from dataclasses import dataclass

from muster.selection import Selector, Train


@dataclass(frozen=True)
class FirstOnes(Selector):
    """The clients with the smallest numbers."""

    clients_per_round: int

    def round(self, fed):
        yield Train(fed.available[: self.clients_per_round])
'''


def install(folder, groups, module=PLUGIN, name="tiny"):
    """A distribution as pip leaves it: a module, and metadata with entry points."""
    (folder / f"{name}_muster.py").write_text(module)
    info = folder / f"{name}_muster-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-muster\nVersion: 1.0\n")
    lines = [f"[{group}]\n{entry}\n" for group, entry in groups]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """Installs distributions for this process alone."""
    # Muster's own register themselves once, in the registry as it is now.
    selectors.names()

    def add(groups, module=PLUGIN, name="tiny"):
        install(tmp_path, groups, module, name)
        monkeypatch.syspath_prepend(str(tmp_path))
        registry._installed.cache_clear()
        monkeypatch.setattr(selectors, "_offered", None)
        monkeypatch.setattr(selectors, "_entries", dict(selectors._entries))

    yield add
    registry._installed.cache_clear()
    for name in [name for name in sys.modules if name.endswith("_muster")]:
        del sys.modules[name]


def test_a_package_adds_a_method_to_the_command_line(tmp_path):
    install(tmp_path, [("muster.selectors", "first-ones = tiny_muster:FirstOnes")])
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}

    def muster_says(*words):
        command = [sys.executable, "-m", "muster.cli.main", *words]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )

    listed = muster_says("list", "selection")
    assert "first-ones" in listed.stdout, listed.stderr
    assert "smallest numbers" in listed.stdout
    (tmp_path / "run.toml").write_text(
        'rounds = 1\n[selection]\nmethod = "first-ones"\nclients_per_round = 3\n[engine]\nworkers = 0\n'
    )
    ran = muster_says("run", "run.toml", "--out", "results", "--json")
    assert ran.returncode == 0, ran.stderr
    saved = "".join(path.read_text() for path in (tmp_path / "results").glob("selections*"))
    assert saved
    wrong = muster_says("run", "run.toml", "--set", "selection.clients=3", "--out", "other")
    assert wrong.returncode == 2
    assert "selection.clients" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_packages_are_imported_only_when_used(plugins):
    plugins([("muster.selectors", "late = tiny_muster:FirstOnes")])
    assert "late" in selectors.names()
    assert "tiny_muster" not in sys.modules
    assert selectors.build("late", {"clients_per_round": 2}).get_params() == {"clients_per_round": 2}
    assert selectors.name_of(selectors.get("late")(3)) == "late"


def test_a_broken_package_hurts_only_who_uses_it(plugins):
    plugins([("muster.selectors", "broken = tiny_muster:FirstOnes")], module="import not_there")
    assert selectors.get("random") is not None
    assert "cannot be imported" in selectors.summary("broken")
    with pytest.raises(ConfigError, match=r"(?s)the package tiny-muster cannot be imported.*not_there"):
        selectors.get("broken")


def test_names_that_are_taken_are_told(plugins):
    plugins([("muster.selectors", "random = tiny_muster:FirstOnes")])
    with pytest.raises(ConfigError, match="the name of one of Muster's own"):
        selectors.get("random")


def test_two_packages_with_one_name_are_told(plugins):
    plugins([("muster.selectors", "mine = tiny_muster:FirstOnes")])
    plugins([("muster.selectors", "mine = other_muster:FirstOnes")], name="other")
    with pytest.raises(
        ConfigError, match=r"two packages.*(tiny|other)-muster and the package (tiny|other)-muster"
    ):
        selectors.get("mine")


def test_every_registry_has_a_group_of_its_own():
    from muster import aggregation, data, models, selection, signals, training
    from muster.data import partition, sources
    from muster.training import objectives
    from muster.updates.filters import filters

    known: list[registry.Registry] = [
        selection.selectors,
        aggregation.aggregators,
        signals.base.signals,
        training.algorithms,
        partition.schemes,
        sources.base.sources,
        models.base.models,
        objectives.objectives,
        filters,
    ]
    groups = [one.group for one in known]
    assert all(group.startswith("muster.") for group in groups)
    assert len(set(groups)) == len(groups)
    assert data is not None


@pytest.mark.parametrize(
    ("package", "registry_name"),
    [("selection", "selectors"), ("aggregation", "aggregators"), ("training", "algorithms")],
)
def test_components_are_found_by_their_class_names(package, registry_name):
    rooms = getattr(muster, package)
    for name in getattr(rooms, registry_name).names():
        component = getattr(rooms, registry_name).get(name)
        assert getattr(rooms, component.__name__) is component, name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        rooms.Nothing  # noqa: B018


def test_class_names_import_little_and_muster_alone_imports_no_pytorch():
    code = """
        import sys
        import muster
        assert "torch" not in sys.modules
        from muster.selection import Terraform, PowerOfChoice
        assert Terraform.__module__ == "muster.selection.terraform"
        assert PowerOfChoice.__module__ == "muster.selection.power_of_choice"
        assert "muster.selection.fedcor" not in sys.modules
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)
