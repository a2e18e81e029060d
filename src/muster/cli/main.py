"""The command line: thin. It parses, calls the library, and shows."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Entry point: a user's mistake gives one message and an exit code, never a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    # From here on: libraries take a second to load, in which people press Ctrl-C.
    from muster.cli.app import app
    from muster.console.output import complain
    from muster.core.errors import MusterError

    try:
        app()
    except MusterError as error:
        complain(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say_stopped()
        sys.exit(INTERRUPTED)
    except SystemExit as left:
        # The command line's own handler has been there first: it leaves with the right code, without a word.
        if isinstance(getattr(left.__context__, "__cause__", None), KeyboardInterrupt):
            _say_stopped()
        raise


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C. While a module is being loaded it ends the process: nothing has begun yet, and an exception there
    can be swallowed, or come out as the library's own error."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _say_stopped()
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _say_stopped() -> None:
    os.write(2, b"stopped\n")


if __name__ == "__main__":
    main()
