"""Print text safely; only tables and views have their own escaping.

A path, an error or a server's text may contain escape sequences, characters that change the writing
direction, and secrets from the environment. None of these reach the terminal.
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
        err: Print to standard error.
    """
    typer.echo(shown(text), err=err)


def shown(text: str) -> str:
    """Return text that is safe to print: unprintable characters are escaped and secrets replaced."""
    return written_out(Redaction(secrets_in(os.environ)).plain(text))


def shown_path(path: Path) -> str:
    """Return a path for a sentence: in one line, whatever is in its name."""
    return printable(str(path))
