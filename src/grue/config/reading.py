"""Functions for configuration files of every format: read the text, and suggest a key for a misspelt one."""

import os
from collections.abc import Iterable
from pathlib import Path

from grue.errors import MCPConfigError

MAX_CONFIG_BYTES = 16 * 2**20
"""Size limit of a configuration file."""


def read_config_text(path: Path, *, if_missing: str) -> str:
    """Return the text of a UTF-8 file, without its byte order mark.

    Args:
        path: The file.
        if_missing: The complete error message for a file that does not exist.

    Raises:
        MCPConfigError: The file is missing, unreadable, longer than 16 MiB, or not UTF-8 (the error names
            line and column).
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError as exc:
        raise MCPConfigError(if_missing, path=str(path)) from exc
    except (OSError, ValueError) as exc:  # ValueError: a NUL character in the path
        cause = getattr(exc, "strerror", None) or str(exc)
        raise MCPConfigError(f"Cannot read {str(path)!r}: {cause}.", path=str(path)) from exc
    if len(content) > MAX_CONFIG_BYTES:
        raise MCPConfigError(
            f"{path} is longer than {MAX_CONFIG_BYTES // 2**20} MiB, the limit for a configuration file.",
            path=str(path),
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        before = content[: exc.start]
        line, column = before.count(b"\n") + 1, exc.start - before.rfind(b"\n")
        raise MCPConfigError(
            f"{path} is not UTF-8 text: line {line}, column {column} has an invalid byte."
            " Save the file as UTF-8.",
            path=str(path),
            line=line,
            column=column,
        ) from exc


def replace_file(path: Path, text: str) -> None:
    """Write a whole file, so that a reader finds either the old text or the new one.

    Raises:
        MCPConfigError: It cannot be written.
    """
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        # A lone surrogate, as in a tool's name, is written as a JSON escape.
        new.write_bytes(text.encode("utf-8", "backslashreplace"))
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise MCPConfigError(f"Cannot write {path}: {error.strerror}.", path=str(path)) from error


def nearest(word: str, known: Iterable[str], *, similarity: float = 0.0) -> str | None:
    """Return the known word most similar to `word`, or `None` if none reaches `similarity` (0 to 1)."""
    import difflib  # only a mistake needs it

    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=similarity)
    return by_lower[matches[0]] if matches else None
