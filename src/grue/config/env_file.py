r"""Read an `envFile`: environment variables in the dotenv format, one `NAME=value` a line.

This is the part of the format on which dotenv readers agree. Empty lines and lines that start with `#` are
skipped. A leading `export` is allowed. If a name occurs twice, the last value wins. A value without quotes
ends at ` #` or at the end of the line. In single quotes a value is literal; in double quotes `\n`, `\r`,
`\t`, `\"` and `\\` are escapes. Quoted values may span lines. Variables inside a value are not expanded,
because readers disagree about that.
"""

import re
from pathlib import Path

from grue.config.documents import read_config_text
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
        wanted_by: Who refers to the file, for errors, such as "MCP server 'github'".

    Raises:
        MCPConfigError: The file is missing, or a line is malformed. The error names the line's number and
            never shows its text, which may contain a secret.
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
    """Return a name, its value, and the position of the next line."""
    name = _NAME.match(text, start)
    if name is None:
        raise _wrong(text, start, path, "should be NAME=value, with a name of letters, digits and _")
    quote = text[name.end() : name.end() + 1]
    if quote not in _QUOTED:
        plain = _PLAIN.match(text, name.end())
        assert plain is not None, "the pattern matches any line"
        return name[1], _usable(plain["value"], text, start, path), plain.end()
    quoted = _QUOTED[quote].match(text, name.end())
    if quoted is None:
        raise _wrong(text, start, path, f"has an opening {quote} without a closing one")
    rest = _SKIPPED.match(text, quoted.end())
    if rest is None:
        raise _wrong(text, start, path, f"has text after the closing {quote}")
    value = quoted["value"]
    if quote == '"':
        value = _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], value)
    return name[1], _usable(value, text, start, path), rest.end()


def _usable(value: str, text: str, start: int, path: Path) -> str:
    if "\0" in value:
        raise _wrong(text, start, path, "has a NUL character, which an environment variable cannot contain")
    return value


def _wrong(text: str, position: int, path: Path, problem: str) -> MCPConfigError:
    line = text.count("\n", 0, position) + 1
    return MCPConfigError(f"{path}: line {line} {problem}.", path=str(path), line=line)
