"""What goes wrong, said in sentences: every command runs inside of `plain_errors`."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator

import typer

from grue.errors import GameError, MCPConfigError, MCPError

FAILED, USAGE, INTERRUPTED = 1, 2, 130


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what goes wrong into sentences on stderr and a status; `GRUE_DEBUG=1` shows where it came from."""
    try:
        yield
    except (MCPConfigError, GameError) as error:
        _complain(str(error))
        raise typer.Exit(USAGE) from error
    except MCPError as error:
        _complain(str(error))
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(INTERRUPTED) from error
    except BrokenPipeError as error:
        # Whoever read our output has gone; nothing may be written to it any more, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from error


def _complain(message: str) -> None:
    typer.echo(f"grue: {message}", err=True)
    if os.environ.get("GRUE_DEBUG"):
        traceback.print_exc()
