"""Everything that touches interfaces of Flower which are not part of its documented API: for flwr 1.41 only.

Flower starts a process for every message, and a server process of its own for every run. Warm nodes and a run that
is driven from this process need more than its public interfaces offer; what they need is here and nowhere else.
`check_version` refuses other versions before any module below is imported. Every name that they take from Flower
is checked in `tests/flower/deployed/test_flower_internals.py`, which reports what a new version has changed. Stock
nodes and `flwr run` need nothing from here.
"""

from muster.flower.deploy.version import check_version

check_version()
