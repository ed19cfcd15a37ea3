"""`grue mock-server`: run the bundled mock server, or a `MockServer` of the user, over stdio or HTTP."""

import importlib
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import typer

from grue.cli import quit_at_once
from grue.cli.saying import say
from grue.errors import MCPConfigError
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
    server = _server(target, options)
    if port is None:
        import anyio

        if sys.stdin.isatty():
            say("This serves the client that starts it; there is nothing to type. Ctrl-C ends it.", err=True)
        quit_at_once()  # KeyboardInterrupt would not end the thread that reads standard input
        anyio.run(server.serve_stdio)
        return
    try:
        with server.serve_http(port=port, transport=transport) as url:
            typer.echo(url)
            sys.stdout.flush()
            threading.Event().wait()
    except OSError as error:
        raise MCPConfigError(
            f"cannot serve on port {port}: {error.strerror}. `grue mock-server --http 0` takes a free one."
        ) from error


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
    server = getattr(_module(module), name, None)
    if not isinstance(server, MockServer):
        raise MCPConfigError(f"{name!r} in {module!r} is not a MockServer.")
    return server


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        sys.path.insert(0, "")
    elif not Path(name).is_file():
        raise MCPConfigError(f"there is no file {name!r}.")
    try:
        return _of_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise MCPConfigError(f"there is no module {name!r}: name one, or a file with .py.") from error
        what = f"{type(error).__name__}: {printable(str(error), 500)}"
        raise MCPConfigError(f"{name!r} cannot be imported: {what}.") from error


def _of_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
