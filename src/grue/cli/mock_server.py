"""`grue mock-server`: run the bundled mock server, or a `MockServer` of the user, over stdio or HTTP."""

import importlib
import runpy
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import typer

from grue.cli import quit_at_once
from grue.cli.saying import say
from grue.errors import MCPConfigError
from grue.runtime.files import os_cause
from grue.runtime.safe_text import printable

if TYPE_CHECKING:
    from grue.testing.mock_server import MockServer


def serve(
    target: str | None,
    options: dict[str, Any],
    *,
    port: int | None,
    transport: Literal["http", "sse"] = "http",
) -> None:
    """Serve until the client closes standard input, or until Ctrl-C.

    `target`: `MODULE:NAME` or `FILE.py:NAME` of a `MockServer`; `None`: the bundled one, made with `options`.
    `port` is a port of 127.0.0.1; 0: a free one; `None`: use standard input and output.
    """
    with ExitStack() as served:
        if target is not None and not target.rpartition(":")[0].endswith(".py"):
            served.enter_context(importing_from_here())
        server = _server(target, options)
        if port is None:
            import anyio

            if sys.stdin.isatty():
                hint = "This serves the client that starts it; there is nothing to type. Ctrl-C ends it."
                say(hint, err=True)
            quit_at_once()  # KeyboardInterrupt would not end the thread that reads standard input
            anyio.run(server.serve_stdio)
            return
        try:
            url = served.enter_context(server.serve_http(port=port, transport=transport))
        except OSError as error:
            fault = f"cannot serve on port {port}: {os_cause(error)}."
            raise MCPConfigError(f"{fault} `grue mock-server --http 0` takes a free one.") from error
        typer.echo(url)
        sys.stdout.flush()
        threading.Event().wait()


@contextmanager
def importing_from_here() -> Iterator[None]:
    """Within the block, put the working directory first on `sys.path`, as `python -m` does."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        with suppress(ValueError):  # what was imported has removed it
            sys.path.remove("")


def _server(target: str | None, options: dict[str, Any]) -> "MockServer":
    from grue.testing.mock_server import MockServer

    if target is None:
        from grue.testing.mock_features import reference_server

        try:
            return reference_server(**options)
        except ValueError as error:
            raise MCPConfigError(f"{error}.") from error
    if options != {"without": (), "page_size": None, "era": "both"}:
        raise MCPConfigError(
            "--without, --page-size and --era are for the reference server: set them in your MockServer(...)."
        )
    module, _, name = target.rpartition(":")
    if not module or not name:
        raise MCPConfigError(f"{target!r} does not name a server: write MODULE:NAME or FILE.py:NAME.")
    imported = _imported(module)
    server = getattr(imported, name, None)
    if isinstance(server, MockServer):
        return server
    fault = f"{module!r} has no {name!r}"
    if hasattr(imported, name):
        fault = f"{name!r} in {module!r} is not a MockServer"
    servers = ", ".join(each for each, value in vars(imported).items() if isinstance(value, MockServer))
    raise MCPConfigError(f"{fault}. MockServers there: {servers or 'none'}.")


def _imported(module: str) -> object:
    if module.endswith(".py") and not Path(module).is_file():
        raise MCPConfigError(f"there is no file {module!r}.")
    try:
        if module.endswith(".py"):
            return SimpleNamespace(**runpy.run_path(module))
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise MCPConfigError(f"there is no module {module!r}: name one, or a file with .py.") from error
        what = f"{type(error).__name__}: {printable(str(error), 500)}"
        raise MCPConfigError(f"{module!r} cannot be imported: {what}.") from error
