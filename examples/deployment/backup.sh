#!/bin/sh
# A copy of the SuperLink's state and of Muster's results while both are in use: backup.sh TARGET-FOLDER
set -eu
target="$1/$(date -u +%Y%m%dT%H%M%SZ)"
mkdir -p "$target"
chmod 700 "$target"
"${PYTHON:-/opt/muster/bin/python}" - "${STATE:-/var/lib/muster}" "$target" <<'PYTHON'
import shutil
import sqlite3
import sys
from pathlib import Path

state, target = map(Path, sys.argv[1:])


def copy_files() -> None:
    ignored = shutil.ignore_patterns("muster.db*", "muster.claims", "*.tmp")
    shutil.copytree(state / "runs", target / "runs", ignore=ignored, dirs_exist_ok=True)


def copy_database(name: str) -> None:
    """With SQLite's own means: never half of a transaction, whoever is writing."""
    if (state / name).exists():
        (target / name).parent.mkdir(exist_ok=True)
        with sqlite3.connect(state / name) as live, sqlite3.connect(target / name) as copy:
            live.backup(copy)


# Checkpoints before and after the database that names them: one of the two copies has the one that it means.
if (state / "runs").exists():
    copy_files()
    copy_database("runs/muster.db")
    copy_files()
copy_database("superlink.db")
PYTHON
echo "$target"
