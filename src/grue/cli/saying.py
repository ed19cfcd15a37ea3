"""Print text in which secrets, escape sequences and marks of the writing direction are replaced."""

import os
import shutil
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

import msgspec
import typer

from grue.runtime.safe_text import printable, written_out
from grue.runtime.secrets.redaction import Redaction


def from_here(path: Path, here: Path | None = None) -> Path:
    """Return `path` relative to `here` (`None`: the working directory) if it is inside, else unchanged."""
    here = here or Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def grue_from(folder: Path) -> str:
    """Return how to call grue in `folder`: `grue`, or its path if that is known and PATH has no `grue`."""
    called = Path(sys.argv[0])
    if called.name != "grue" or shutil.which("grue") is not None:
        return "grue"
    here = Path.cwd()
    called = from_here(called)
    if not called.is_absolute() and folder != here:
        called = Path(os.path.relpath(here / called, folder))
    return quote(str(called))


GRUE = grue_from(Path.cwd())  # the command that starts grue from the working directory


def for_this_python(message: str) -> str:
    """Return an error's text in which `pip install` names this Python, unless `pip` on PATH belongs to it."""
    python = Path(sys.executable)
    own = Path(shutil.which("pip") or "").parent == python.parent
    pip = "pip" if own else f"{quote(str(from_here(python)))} -m pip"
    return message.replace(": pip install", f": {pip} install")


def say(text: str = "", *, err: bool = False) -> None:
    """Print text as `shown` returns it, to standard output or standard error."""
    typer.echo(shown(text), err=err)


@contextmanager
def reader_may_leave(*, err: bool = False) -> Iterator[None]:
    """Discard the rest of the output if its reader has closed the pipe. Does not change the exit status."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())


def say_if_read(text: str = "", *, err: bool = False) -> None:
    """Print text as `say` does. If the reader has closed the pipe, as `head` does, the command goes on."""
    with reader_may_leave(err=err):
        say(text, err=err)


def say_json(value: object) -> None:
    """Print a value as one line of JSON, with unprintable characters as JSON escapes."""
    from grue.tracing.show import printable_json

    say(printable_json(msgspec.json.encode(value, enc_hook=str)))


def shown(text: str) -> str:
    """Return text with unprintable characters escaped, and the environment's secrets replaced."""
    return written_out(Redaction.of_environment().redact_text(text))


def say_page(page: Path, open_browser: bool, content: str = "") -> None:
    """Print where an HTML page was written, followed by `content`; with `open_browser`, open the page."""
    say(f"Wrote {shown_path(page)}{content}")
    if open_browser and not webbrowser.open(page.absolute().as_uri()):
        say("There is no browser to show it; open the file yourself.", err=True)


def shown_path(path: Path) -> str:
    """Return a path as text, with unprintable characters replaced."""
    return printable(str(path))


def shown_argument(path: Path) -> str:
    """Return a path as an argument of a command for the user to copy, quoted if necessary."""
    text = f"./{path}" if str(path).startswith("-") else str(path)
    if text.isprintable():
        return quote(text)
    # bash, zsh and ksh read `$'a\012b'` as a text with a newline.
    escaped = (c if c.isprintable() and c not in "\\'" else _octal(c) for c in text)
    return f"$'{''.join(escaped)}'"


def _octal(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(char))
