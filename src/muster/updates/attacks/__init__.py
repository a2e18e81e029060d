"""Attacks: what malicious clients do, for simulation. One file each; all are update filters."""

import importlib
import pkgutil

# Registers them: the registry of filters imports only the files beside this folder.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
