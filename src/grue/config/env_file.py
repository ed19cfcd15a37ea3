r"""`envFile`: environment variables in the dotenv format, one `NAME=value` a line.

What dotenv readers agree upon: empty lines and lines from `#` on are skipped, a leading `export` is allowed,
the last of two equal names counts. A value without quotes ends at ` #` or at the line's end; one in single
quotes is taken as it is; in double quotes `\n`, `\r`, `\t`, `\"` and `\\` are escapes; quoted values may span
lines. Nothing is expanded: where readers disagree, nobody is surprised by a literal text.
"""

import re
from pathlib import Path

from grue.config.reading import read_config_text
from grue.errors import MCPConfigError

_NAME = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*")
_SKIPPED = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_PLAIN = re.compile(r"(?P<value>[^\n]*?)[ \t]*(?:(?:(?<=[ \t])|(?<==))#[^\n]*)?(?:\n|\Z)")
_QUOTED = {
    "'": re.compile(r"'(?P<value>[^']*)'"),
    '"': re.compile(r'"(?P<value>(?:[^"\\]|\\.)*)"', re.DOTALL),
}
_ESCAPE = re.compile(r'\\([nrt"\\])')
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


def read_env_file(path: Path, *, wanted_by: str) -> dict[str, str]:
    """Return the variables of a dotenv file.

    Args:
        path: The file.
        wanted_by: Whose configuration names it, for errors, such as "MCP server 'github'".

    Raises:
        MCPConfigError: The file is missing, or a line is none of the format's; with the line's number, and
            never with its text, which may hold a secret.
    """
    missing = f"{wanted_by}: envFile not found: {path}\nCreate it, or remove envFile from the configuration."
    text = read_config_text(path, if_missing=missing).replace("\r\n", "\n")
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        skipped = _SKIPPED.match(text, position)
        if skipped is None:
            name, value, position = _variable(text, position, path)
            found[name] = value
        else:
            position = skipped.end()
    return found


def _variable(text: str, start: int, path: Path) -> tuple[str, str, int]:
    """Return a name, its value, and where the next line begins."""
    name = _NAME.match(text, start)
    if name is None:
        raise _wrong(text, start, path, "should be NAME=value, with a name of letters, digits and _")
    quote = text[name.end() : name.end() + 1]
    if quote not in _QUOTED:
        plain = _PLAIN.match(text, name.end())
        assert plain is not None, "it matches any line"
        return name[1], _usable(plain["value"], text, start, path), plain.end()
    quoted = _QUOTED[quote].match(text, name.end())
    if quoted is None:
        raise _wrong(text, start, path, f"begins a value in {quote} that is never closed")
    rest = _SKIPPED.match(text, quoted.end())
    if rest is None:
        raise _wrong(text, start, path, f"has something after the closing {quote}")
    value = quoted["value"]
    if quote == '"':
        value = _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], value)
    return name[1], _usable(value, text, start, path), rest.end()


def _usable(value: str, text: str, start: int, path: Path) -> str:
    if "\0" in value:
        raise _wrong(text, start, path, "has a NUL character, which no environment variable can hold")
    return value


def _wrong(text: str, position: int, path: Path, problem: str) -> MCPConfigError:
    line = text.count("\n", 0, position) + 1
    return MCPConfigError(f"{path}: line {line} {problem}.", path=str(path), line=line)
