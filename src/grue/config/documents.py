"""Read the files that users write: TOML, YAML, strict JSON. A `Document` knows the lines of its values.

Of YAML, only what JSON can express is read. `yes`, dates and times are texts, as in YAML 1.2. Duplicate keys
and aliases are refused: with aliases, a short file can describe an endless value.
"""

import errno
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from grue.errors import MCPConfigError, MissingDependencyError
from grue.runtime.files import as_path, os_cause, os_errors_as, replacing

MAX_CONFIG_BYTES = 16 * 2**20
MAX_YAML_CHARS = 2**20
"""The most characters that a YAML document may have; the parser needs a second or more for so many."""

T = TypeVar("T")
KeyPath = tuple[int | str, ...]  # the path to a value in a document: keys and zero-based list indexes

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`")
_PLAIN = "tag:yaml.org,2002:"
_TAGS = {
    "mapping": ("map",),
    "sequence": ("seq",),
    "scalar": ("str", "int", "float", "bool", "null", "timestamp"),
}
SECRETS_ELSEWHERE = dict.fromkeys(
    ("api_key", "key", "token"),
    "Keys are not written into files: set GRUE_API_KEY, or the provider's own variable, in the environment.",
)
"""Names of keys for secrets, each with the advice for a user who has put that key into a file."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_MOST_LEVELS = 100


class Document:
    """A parsed file. `find_lines` returns `lines`; it is called once, when a line is first needed."""

    def __init__(self, path: Path, value: Any, find_lines: Callable[[], Mapping[KeyPath, int]]) -> None:
        self.path = path
        self.value = value
        self._find_lines = find_lines

    @cached_property
    def lines(self) -> Mapping[KeyPath, int]:
        """Line numbers, from 1, by a value's path. Values in TOML's inline tables and lists have none."""
        return self._find_lines()

    def line(self, keys: KeyPath) -> int | None:
        """Return the line of the value at this path, or of the nearest enclosing value; `None`: not known."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return self.lines.get(keys)

    def place(self, keys: KeyPath) -> str:
        """Return the prefix of an error about the value at this path, such as `agent.yaml, line 7: `."""
        line = self.line(keys)
        return f"{self.path}: " if line is None else f"{self.path}, line {line}: "

    def error(self, keys: KeyPath, problem: str) -> MCPConfigError:
        """Return the error for one wrong value."""
        return self.errors([MCPConfigError.Problem(keys, problem)])

    def errors(self, problems: Sequence[MCPConfigError.Problem]) -> MCPConfigError:
        """Return a single error that names all `problems`; there must be at least one."""
        said = "\n".join(f"{self.place(problem.keys)}{problem.text}" for problem in problems)
        return MCPConfigError(said, path=str(self.path), line=self.line(problems[0].keys), problems=problems)

    def convert(self, kind: type[T]) -> T:
        """Return the document as a Struct of this type; an empty one gives the Struct's defaults."""
        try:
            return msgspec.convert({} if self.value is None else self.value, kind)
        except msgspec.ValidationError as error:
            keys, problem = problem_of(error)
            unknown = _UNKNOWN.match(problem)
            if unknown is None:
                wanted = choices(problem, kind, keys)
                raise self.error(keys, f"{dotted(keys)}{': ' if keys else ''}{problem}{wanted}.") from error
            key, table = unknown["key"], _struct_in(_declared(kind, keys))
            known = [field.encode_name for field in msgspec.structs.fields(table)]
            keys = (*keys, key)
            meant = f" {SECRETS_ELSEWHERE[key]}" if key in SECRETS_ELSEWHERE else did_you_mean(key, known)
            text = f"unknown key {dotted(keys)!r}.{meant} Known keys: {', '.join(known)}."
            raise self.error(keys, text) from error


def problem_of(error: msgspec.ValidationError) -> MCPConfigError.Problem:
    """Split the text of a msgspec error, such as `... - at `$.rules[3]``, into a path and a text."""
    words, _, place = str(error).partition(" - at `$")
    parts = re.findall(r"\[(\d+)\]|([^.\[\]`]+)", place.replace("[...]", ""))
    return MCPConfigError.Problem(tuple(int(number) if number else key for number, key in parts), words)


def dotted(keys: KeyPath) -> str:
    """Return a path of keys as a user writes it, such as `mcp.servers`."""
    return ".".join(map(str, keys))


def file_error(
    path: Path, what: str, *, line: int | None = None, column: int | None = None
) -> MCPConfigError:
    """Return an error with the path and then `what` as its text, such as `a.toml is not valid TOML.`."""
    return MCPConfigError(f"{path} {what}", path=str(path), line=line, column=column)


def read_config_text(path: Path, *, if_missing: str, pipes: bool = False) -> str:
    """Return the text of a UTF-8 file, without its byte order mark; `if_missing` is a complete error text.

    With `pipes`, a named pipe is read, which may block; else it is refused. A nameless pipe is always read.
    """
    try:
        real = Path(os.path.realpath(path))
        # On macOS a pipe without a name has this parent; on Linux its real path does not exist.
        if not pipes and real.parent != Path("/dev/fd") and real.is_fifo():
            raise OSError(errno.EINVAL, "it is a pipe, not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError as exc:
        raise MCPConfigError(if_missing, path=str(path)) from exc
    except (OSError, ValueError) as exc:  # ValueError: a NUL character in the path
        raise MCPConfigError(f"Cannot read {str(path)!r}: {os_cause(exc)}.", path=str(path)) from exc
    if len(content) > MAX_CONFIG_BYTES:
        most = f"{MAX_CONFIG_BYTES // 2**20} MiB, the limit for a configuration file"
        raise file_error(path, f"is longer than {most}.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        before = content[: exc.start]
        line, column = before.count(b"\n") + 1, exc.start - before.rfind(b"\n")
        where = f"line {line}, column {column} has an invalid byte. Save the file as UTF-8."
        raise file_error(path, f"is not UTF-8 text: {where}", line=line, column=column) from exc


def is_there(path: Path) -> bool:
    """Return whether this file exists. A file that cannot be reached counts, too: reading it says why."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):  # such as a folder that this user may not search, or a NUL character
        return True
    return True


def replace_file(path: Path, text: str) -> None:
    """Write a whole file, so that a reader finds either the old text or the new one. Follows links."""
    path = Path(os.path.realpath(path))  # before Python 3.13, `Path.resolve` raises for a loop of links
    with os_errors_as(MCPConfigError, f"write {path}", path=str(path)), replacing(path, mode=0o666) as file:
        if path.exists():
            os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
        # A tool's name may contain a lone surrogate, which has no UTF-8 form.
        file.write(text.encode("utf-8", "backslashreplace"))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a space and a question with a known word that is similar to `word`, or an empty text."""
    near = nearest(word, known)
    return f" Did you mean {near!r}?" if near is not None else ""


def nearest(word: str, known: Iterable[str], *, similarity: float = 0.6) -> str | None:
    """Return the known word most similar to `word`, or `None` if none reaches `similarity` (0 to 1)."""
    import difflib  # imported here, because only a mistake needs it

    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=similarity)
    return by_lower[matches[0]] if matches else None


def parse_toml(text: str, path: Path) -> Document:
    """Parse a TOML document."""
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        # Before Python 3.14 an error has its position only in its message, or none at the document's end.
        found = re.search(r"at line (\d+), column (\d+)", str(exc))
        line = int(found[1]) if found else text.count("\n") + 1
        column = int(found[2]) if found else len(text) - text.rfind("\n")
        raise file_error(path, f"is not valid TOML: {exc}.", line=line, column=column) from exc
    # `tomllib` raises these if the document is nested too deeply, or a number or a date is out of range.
    except (RecursionError, ValueError) as exc:
        raise file_error(path, f"is not usable TOML: {exc}.") from exc
    return Document(path, value, lambda: _toml_lines(text.replace("\r\n", "\n")))


# Strings in three quotes are matched by `(?>(...)*)` and not by `(...)*+`: before Python 3.11.5, the latter
# also consumes the text of a last repetition whose lookahead has failed.
_TOML = re.compile(
    r"""\"{3}(?>(?:[^"\\]|\\.|"{1,2}(?!"))*)"{3,5}|'{3}(?>(?:[^']|'{1,2}(?!'))*)'{3,5}|"""
    r""""(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|\#[^\n]*+|[^\s"'\#\[\]{}=]++|[\[\]{}=\n]""",
    re.DOTALL,
)


def _toml_lines(text: str) -> dict[KeyPath, int]:
    # `tomllib` reports no lines, so parse each `[header]` and key alone. Keys of inline tables are left out.
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, head in _statements(text):
        is_header = head.startswith("[")
        keys = () if is_header else table
        names = _names(head if is_header else f"{head} = 0")
        for name in names:
            keys = (*keys, name)
            lines.setdefault(keys, number)
            if head.startswith("[[") and name is names[-1]:
                counts[keys] = counts.get(keys, 0) + 1
            if keys in counts:
                keys = (*keys, counts[keys] - 1)
                lines.setdefault(keys, number)
        table = keys if is_header else table
    return lines


def _names(statement: str) -> list[str]:
    names: list[str] = []
    inside: Any = tomllib.loads(statement)
    while inside and isinstance(inside, dict | list):
        if isinstance(inside, dict):
            names += inside
        inside = inside[0] if isinstance(inside, list) else inside[names[-1]]
    return names


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number of each TOML statement, with its `[header]` or the key before its `=`."""
    number, depth, start, ends = 1, 0, -1, False
    for token in _TOML.finditer(text):
        found = token[0]
        if found == "\n" and depth == 0:
            start, ends = -1, False
        elif start < 0 and not found.isspace() and found[0] != "#":
            start = token.start()
        if found in "[{":
            depth += 1
        elif found in "]}":
            depth -= 1
        is_header = start >= 0 and text[start] == "["
        if start >= 0 and not ends and depth == 0 and found in ("]" if is_header else "="):
            ends = True
            yield number, text[start : token.end() if is_header else token.start()]
        number += found.count("\n")


def parse_json(text: str, source: Path) -> Document:
    """Parse strict JSON. No error quotes a string value, which may be a secret."""
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_such_number, parse_float=_finite
        )
    except json.JSONDecodeError as exc:
        line, column = exc.lineno, exc.colno
        where = f"line {line}, column {column}: {exc.msg.rstrip(': ')}.{_advice(text, exc.pos)}"
        raise file_error(source, f"is not valid JSON: {where}", line=line, column=column) from exc
    except (RecursionError, ValueError) as exc:
        why = "it is nested too deeply" if isinstance(exc, RecursionError) else exc
        raise file_error(source, f"is not usable JSON: {why}.") from exc
    return Document(source, value, lambda: _json_lines(text))


def read_own_json(path: Path, remedy: str) -> Document:
    """Parse a file that grue itself has written and that is known to exist; `remedy` is as in `converted`."""
    text = read_config_text(path, if_missing=f"{path} has just been removed.")
    try:
        return parse_json(text, path)
    except MCPConfigError as error:
        text = f"{error} {_or_remove(remedy)}."
        raise MCPConfigError(text, path=str(path), line=error.line, column=error.column) from error


def _or_remove(remedy: str) -> str:
    return f"Restore it, or remove it and {remedy}"


_JSON = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{},:\n]|[^\s"\[\]{},:]++')


def _json_lines(text: str) -> dict[KeyPath, int]:
    lines: dict[KeyPath, int] = {(): 1}
    keys: list[int | str] = []
    opened: list[str] = []
    number, is_key = 1, False
    for part in _JSON.findall(text):
        if part == "\n":
            number += 1
        elif part in "]}":
            opened.pop()
            keys.pop()
            is_key = False
        elif part == ",":
            is_key = opened[-1] == "{"
            if not is_key:
                keys[-1] = int(keys[-1]) + 1
        elif part != ":":
            if is_key:
                keys[-1] = json.loads(part)
            lines.setdefault(tuple(keys), number)
            is_key = part == "{"
            if part in "[{":
                opened.append(part)
                keys.append(0)
    return lines


def converted(document: Document, kind: type[T], what: str, remedy: str) -> T:
    """Convert a file that grue wrote to `kind`. An error says that it is not `what`, and advises `remedy`."""
    try:
        return msgspec.convert(document.value, kind)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        # UnicodeError is raised for a key with half of a surrogate pair.
        raise file_error(document.path, f"is not {what}: {error}. {_or_remove(remedy)}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} occurs twice in one object")
        found[key] = value
    return found


def _no_such_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _finite(number: str) -> float:
    # `json.dumps` would write an infinite number as Infinity, which is not JSON.
    if math.isinf(value := float(number)):
        raise ValueError("it has a number that is too large")
    return value


def _advice(text: str, position: int) -> str:
    rest = text[position:]
    if not text.strip():
        return " The file is empty."
    if rest.startswith(("//", "/*", "#")):
        return " Comments are not part of JSON: remove them."
    if rest[:1] in ("}", "]", ",") and text[:position].rstrip().endswith(","):
        return " There is a superfluous comma before it."
    if _TRAILING_COMMA.match(rest):  # since Python 3.13, `position` is that of the comma
        return " There is a superfluous comma."
    return ""


_TRAILING_COMMA = re.compile(r",\s*[}\]]")


def read_yaml(path: str | PathLike[str]) -> Document:
    """Read a YAML file.

    Raises:
        MCPConfigError: The file is missing, unreadable, too long, or not in the subset of YAML that is read.
        MissingDependencyError: The package `pyyaml` is absent.
    """
    path = as_path(path, "read_yaml()")
    missing = (
        f"Configuration file not found: {path}. Name an existing YAML file; `grue run --offline` writes an"
        " example."
    )
    return parse_yaml(read_config_text(path, if_missing=missing), path)


def parse_yaml(text: str, path: Path, *, first_line: int = 1) -> Document:
    """Parse `text`, the part of the file `path` that begins in the line `first_line`."""
    try:
        import yaml
    except ImportError:
        raise MissingDependencyError(
            f"{path} is YAML, which needs the package pyyaml. Install it: pip install 'pyyaml>=6'"
        ) from None
    if len(text) > MAX_YAML_CHARS:
        raise file_error(path, "is too long: at most 1 MiB of YAML is read.")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = first_line + (mark.line if mark else 0)
        problem = error.problem or error.context or "it cannot be read"
        fault = f"{path}, line {line}: not valid YAML: {problem}."
        raise MCPConfigError(fault, path=str(path), line=line) from error
    except yaml.YAMLError as error:
        raise file_error(path, "is not valid YAML: it has a character that YAML does not allow.") from error
    except RecursionError as error:
        raise file_error(path, "is not usable: it is nested too deeply.") from error
    reading = _Reading(path, first_line)
    value = None if root is None else reading.value(root, ())
    return Document(path, value, lambda: reading.lines or {(): first_line})


def _declared(kind: Any, keys: KeyPath) -> Any:
    for key in filter(lambda key: isinstance(key, str), keys):
        fields = msgspec.structs.fields(_struct_in(kind))
        kind = next(each.type for each in fields if each.encode_name == key)
    return kind


def choices(problem: str, kind: Any, keys: KeyPath) -> str:
    """Return the allowed values, to append to a msgspec error about an enum value; "" for other errors."""
    if not problem.startswith("Invalid enum value"):
        return ""
    declared = _declared(kind, keys)
    known = [repr(each) for each in get_args(declared) if isinstance(each, str)]
    for part in get_args(declared):
        known += map(repr, get_args(part)) if get_origin(part) is Literal else ()
        known += ["a list"] if get_origin(part) is list else ()
    return f"; it should be {' or '.join(known)}" if known else ""


def _struct_in(declared: Any) -> Any:
    if hasattr(declared, "__struct_fields__"):
        return declared
    return next(filter(None, map(_struct_in, get_args(declared))), None)


class _Reading:
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
        if node.tag.removeprefix(_PLAIN) not in _TAGS[node.id]:
            raise self._error(node, f"the tag {node.tag!r} is not supported")
        if node.id == "mapping":
            return self._mapping(node, keys)
        if node.id == "sequence":
            return [self.value(each, (*keys, number)) for number, each in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: Any, keys: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.id != "scalar" or key_node.value == "<<":
                raise self._error(key_node, "a key should be a text")
            key = self._text(key_node)
            path = (*keys, key)
            if key in found:
                twice = f"the key {key!r} is there twice, first in line {self.lines[path]}"
                raise self._error(key_node, twice)
            self.lines[path] = self._line(key_node)
            found[key] = self.value(value_node, path)
        return found

    def _scalar(self, node: Any) -> Any:
        text = self._text(node)
        tag = node.tag.removeprefix(_PLAIN)
        if tag == "str":
            return text
        if tag == "null":
            return None
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        return _number(text)

    def _text(self, node: Any) -> str:
        text: str = node.value
        if _SURROGATE.search(text):
            raise self._error(node, "half of a surrogate pair is no character: write the character itself")
        return text

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
            return number if math.isfinite(number) else text
        except (ValueError, OverflowError):  # OverflowError: `isfinite` of a whole number beyond all floats
            continue
    return text
