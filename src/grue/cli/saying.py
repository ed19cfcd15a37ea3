"""What the commands print: every word of theirs goes through here, but for tables and views of their own.

A path, an error or a server's words may hold escape sequences, marks that turn the direction of writing, and
secrets of the environment. None of that reaches the terminal.
"""

import os
from pathlib import Path

import typer

from grue.protocol.safe_text import printable, written_out
from grue.protocol.secret_names import secrets_in
from grue.runtime.redaction import Redaction


def say(text: str = "", *, err: bool = False) -> None:
    """Print text, in its lines.

    Args:
        text: Anything.
        err: On standard error.
    """
    typer.echo(shown(text), err=err)


def shown(text: str) -> str:
    """Return text as it may be printed: characters that are not printable written out, secrets replaced."""
    return written_out(Redaction(secrets_in(os.environ)).plain(text))


def shown_path(path: Path) -> str:
    """Return a path for a sentence: in one line, whatever is in its name."""
    return printable(str(path))
