"""`muster ui`: the live page."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.running import Workspace
from muster.console.output import err, out


def ui(
    workspace: Workspace = None,
    port: Annotated[int, typer.Option(help="Port of the page; 0: any that is free.", min=0, max=65535)] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    allow_control: Annotated[
        bool, typer.Option("--allow-control", help="Let the page ask runs to stop after their round.")
    ] = False,
    embeddable: Annotated[
        bool,
        typer.Option("--embeddable", help="Let pages of this machine, such as notebooks, show it in a frame."),
    ] = False,
) -> None:
    """Open a page on the workspace: what is running, what was run, which clients were chosen or are served badly.

    Only this machine can reach it, and only with the token in its address. It only reads the store.

    Example: `muster ui --open`
    """
    from muster.core.errors import ConfigError

    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError("the live page needs the extra `ui`", fix="pip install 'muster-fl[ui]'") from error
    from muster.results.store import workspace as workspace_folder
    from muster.ui.app import PageSettings
    from muster.ui.security import new_token
    from muster.ui.serve import checked_workspace, serve

    folder = checked_workspace(workspace_folder(workspace))
    page = PageSettings(folder, new_token(), control=allow_control, embeddable=embeddable)

    def announce(address: str) -> None:
        out.print(address, soft_wrap=True, markup=False)
        err.print(
            f"The page of {folder} is open at this address. Ctrl-C ends it; runs continue.",
            markup=False,
            soft_wrap=True,
        )

    serve(page, port, announce=announce, open_browser=open_browser)
