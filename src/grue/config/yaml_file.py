"""Read YAML with the line of every key, so that an error can say where a value stands.

Only what JSON can express is read: mappings with texts as keys, lists, texts, numbers, `true`, `false` and
`null`. `yes`, dates and times are texts, as in YAML 1.2. Tags, aliases and duplicate keys are refused: a file
of settings needs none, and an alias can make a short file describe an endless value.
"""

import math
import re
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import Struct

from grue.config.reading import nearest, read_config_text
from grue.errors import MCPConfigError, MissingDependencyError

MAX_YAML_CHARS = 2**20
"""Longest document. The parser needs a second or more for one of this length."""

T = TypeVar("T")

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`")
_PLAIN = "tag:yaml.org,2002:"
_MOST_LEVELS = 100

KeyPath = tuple[int | str, ...]
"""The keys and list positions that lead to a value."""


class YamlDocument(Struct, frozen=True):
    """A document and the lines of its values.

    Attributes:
        value: As JSON would have it.
        lines: One-based line of each value, by its path; of a key's value, the line of the key.
    """

    path: Path
    value: Any
    lines: dict[KeyPath, int]

    def line(self, keys: KeyPath) -> int:
        """Return the line of a value; if there is none, of the nearest value around it."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return self.lines.get(keys, 1)

    def place(self, keys: KeyPath) -> str:
        """Return what an error about a value begins with: `agent.yaml, line 7: `."""
        return f"{self.path}, line {self.line(keys)}: "

    def convert(self, kind: type[T]) -> T:
        """Return the document as a Struct of this type. An empty document has all defaults.

        Raises:
            MCPConfigError: A key is unknown, or a value does not fit. Names the line and the key.
        """
        try:
            return msgspec.convert({} if self.value is None else self.value, kind)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at `$")
            keys = _keys(place.rstrip("`"))
            unknown = _UNKNOWN.match(problem)
            if unknown is None:
                raise self.error(keys, f"{_dotted(keys)}{': ' if keys else ''}{problem}.") from error
            key, known = unknown["key"], _fields(kind, keys)
            keys = (*keys, key)
            text = f"unknown key {_dotted(keys)!r}. Did you mean {nearest(key, known)!r}?"
            raise self.error(keys, f"{text} Known keys: {', '.join(known)}.") from error

    def error(self, keys: KeyPath, problem: str) -> MCPConfigError:
        """Return the error that a value has a problem."""
        return MCPConfigError(f"{self.place(keys)}{problem}", path=str(self.path), line=self.line(keys))


def read_yaml(path: Path) -> YamlDocument:
    """Read a YAML file.

    Raises:
        MCPConfigError: The file is missing, unreadable, too long, or not such YAML. Names the line.
        MissingDependencyError: The package `pyyaml` is absent; the text has the command that installs it.
    """
    missing = f"Configuration file not found: {path}. Name an existing YAML file, or create this one."
    return parse_yaml(read_config_text(path, if_missing=missing), path)


def parse_yaml(text: str, path: Path, *, first_line: int = 1) -> YamlDocument:
    """Parse a YAML document.

    Args:
        text: The document.
        path: The file that it stands in, for errors.
        first_line: The line of the file in which the document begins.

    Raises:
        MCPConfigError, MissingDependencyError: As `read_yaml`.
    """
    try:
        import yaml
    except ImportError:
        raise MissingDependencyError(
            f"{path} is YAML, which needs the package pyyaml. Install it: pip install 'grue[yaml]'"
        ) from None
    if len(text) > MAX_YAML_CHARS:
        raise MCPConfigError(f"{path} is too long: at most 1 MiB of YAML is read.", path=str(path))
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = first_line + (mark.line if mark else 0)
        problem = error.problem or error.context or "it cannot be read"
        raise MCPConfigError(
            f"{path}, line {line}: not valid YAML: {problem}.", path=str(path), line=line
        ) from error
    except yaml.YAMLError as error:
        raise MCPConfigError(
            f"{path} is not valid YAML: it has a character that YAML does not allow.", path=str(path)
        ) from error
    except RecursionError as error:
        raise MCPConfigError(f"{path} is not usable: it is nested too deeply.", path=str(path)) from error
    reading = _Reading(path, first_line)
    value = None if root is None else reading.value(root, ())
    return YamlDocument(path, value, reading.lines)


def _keys(place: str) -> KeyPath:
    """Return the keys of a place as msgspec writes it: `limits.max_turns`, `mcp.servers[...]`, `a[3]`."""
    parts = re.findall(r"\[(\d+)\]|([^.\[\]]+)", place.replace("[...]", ""))
    return tuple(int(number) if number else key for number, key in parts)


def _dotted(keys: KeyPath) -> str:
    return ".".join(map(str, keys))


def _fields(kind: Any, keys: KeyPath) -> tuple[str, ...]:
    """Return the keys of the table that these keys lead to, in a Struct of Structs."""
    for key in keys:
        found = next(field.type for field in msgspec.structs.fields(kind) if field.encode_name == key)
        kind = next((each for each in (found, *get_args(found)) if hasattr(each, "__struct_fields__")), found)
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))


class _Reading:
    """Turns nodes into values, and keeps their lines."""

    def __init__(self, path: Path, first_line: int) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._path = path
        self._first_line = first_line
        self._seen: set[int] = set()

    def value(self, node: Any, keys: KeyPath) -> Any:
        self.lines.setdefault(keys, self._line(node))
        if id(node) in self._seen:
            raise self._refused(self.lines[keys], "an alias (`*name`) is not supported: write the value out")
        self._seen.add(id(node))
        if len(keys) > _MOST_LEVELS:
            raise self._error(node, "it is nested too deeply")
        if node.id == "mapping":
            return self._mapping(node, keys)
        if node.id == "sequence":
            return [self.value(each, (*keys, number)) for number, each in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: Any, keys: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if key_node.id != "scalar" or key == "<<":
                raise self._error(key_node, "a key should be a text")
            path = (*keys, key)
            if key in found:
                raise self._error(
                    key_node, f"the key {key!r} is there twice, first in line {self.lines[path]}"
                )
            self.lines[path] = self._line(key_node)
            found[key] = self.value(value_node, path)
        return found

    def _scalar(self, node: Any) -> Any:
        text = node.value
        tag = node.tag.removeprefix(_PLAIN)
        if tag not in ("str", "int", "float", "bool", "null", "timestamp"):
            raise self._error(node, f"the tag {node.tag!r} is not supported")
        if tag == "str":
            return text
        if tag == "null":
            return None
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        return _number(text)

    def _line(self, node: Any) -> int:
        return self._first_line + int(node.start_mark.line)

    def _error(self, node: Any, problem: str) -> MCPConfigError:
        return self._refused(self._line(node), problem)

    def _refused(self, line: int, problem: str) -> MCPConfigError:
        return MCPConfigError(f"{self._path}, line {line}: {problem}.", path=str(self._path), line=line)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return text
