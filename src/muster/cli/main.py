"""The command line: thin. It parses, calls the library, and shows."""

from __future__ import annotations

import sys

from muster.cli.app import app
from muster.console.output import complain
from muster.core.errors import MusterError

INTERRUPTED = 130


def main() -> None:
    """Entry point: a user's mistake gives one message and an exit code, never a traceback."""
    try:
        app()
    except MusterError as error:
        complain(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
