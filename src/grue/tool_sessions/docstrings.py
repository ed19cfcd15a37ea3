"""Read a function's docstring: its description, and the description of each parameter. Pure.

It reads the three forms in use: Google (`Args:` and indented `name (type): text`), NumPy (`Parameters` over
dashes and `name : type` over indented text) and Sphinx (`:param type name: text`). Anything else is part of
the description. It never raises: from a docstring in another form it reads no parameter descriptions.
"""

import inspect
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

_PARAMETERS = frozenset(
    (
        "args",
        "arguments",
        "params",
        "parameters",
        "keyword args",
        "keyword arguments",
        "keyword parameters",
        "other parameters",
    )
)
_OTHERS = frozenset(
    (
        "attributes",
        "example",
        "examples",
        "note",
        "notes",
        "raises",
        "references",
        "return",
        "returns",
        "see also",
        "source",
        "todo",
        "warning",
        "warnings",
        "warns",
        "yield",
        "yields",
    )
)
_UNDERLINE = re.compile(r"-{3,}\s*")
_FIELD = re.compile(r":(?P<field>[a-z]+)(?:\s+(?P<about>[^:\n]+))?:(?:\s+(?P<text>.*)|\s*)")
_PARAMETER_FIELDS = frozenset(("param", "parameter", "arg", "argument", "key", "keyword"))
_FIELDS = _PARAMETER_FIELDS | {"raise", "raises", "except", "return", "returns", "rtype", "type", "yields"}
_ITEM = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:(?:\s+(?P<text>.*)|\s*)")
_NAMES = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")


class Docs(Struct, frozen=True):
    """The parts of a docstring.

    Attributes:
        description: The text before the first section.
        parameters: The description of each parameter that has one, in one line.
    """

    description: str
    parameters: Mapping[str, str]

    @property
    def summary(self) -> str:
        """The first paragraph of the description, in one line."""
        return _one_line(self.description.split("\n\n")[0])


def read_docstring(docstring: str | None) -> Docs:
    """Read a docstring; `None` is an empty one."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    description: list[str] = []
    parameters: dict[str, str] = {}
    position = next((at for at in range(len(lines)) if _begins_section(lines, at)), len(lines))
    description = lines[:position]
    while position < len(lines):
        end = next((at for at in range(position + 1, len(lines)) if _begins_section(lines, at)), len(lines))
        for name, text in _items(lines[position:end]):
            parameters.setdefault(name, text)
        position = end
    return Docs("\n".join(description).strip(), {name: text for name, text in parameters.items() if text})


def _begins_section(lines: list[str], at: int) -> bool:
    line = lines[at]
    if _heading(line) or _is_underlined(lines, at):
        return True
    field = _FIELD.fullmatch(line)
    return field is not None and field["field"] in _FIELDS


def _heading(line: str) -> str:
    """Return the name of the Google section that a line begins; empty if it begins none."""
    name = line.rstrip().removesuffix(":").lower()
    known = name in _PARAMETERS or name in _OTHERS
    return name if known and line.rstrip().endswith(":") else ""


def _is_underlined(lines: list[str], at: int) -> bool:
    below = lines[at + 1] if at + 1 < len(lines) else ""
    return lines[at].strip().lower() in _PARAMETERS | _OTHERS and _UNDERLINE.fullmatch(below) is not None


def _items(section: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the parameters that a section describes; none if it is about something else."""
    head = section[0]
    field = _FIELD.fullmatch(head)
    if field is not None and field["field"] in _FIELDS:
        if field["field"] in _PARAMETER_FIELDS and field["about"]:
            # `:param int steps: text` has the type before the name.
            name = field["about"].split()[-1].lstrip("*")
            yield name, _one_line(" ".join((field["text"] or "", *section[1:])))
    elif _heading(head) in _PARAMETERS:
        yield from _google_items(section[1:])
    elif _is_underlined(section, 0) and head.strip().lower() in _PARAMETERS:
        yield from _numpy_items(section[2:])


def _google_items(block: list[str]) -> Iterator[tuple[str, str]]:
    base = next((_indent(line) for line in block if line.strip()), 0)
    name, texts = "", list[str]()
    for line in block:
        if line.strip() and _indent(line) < base:
            break  # text after the section that no heading begins
        item = _ITEM.fullmatch(line.strip()) if _indent(line) == base else None
        if item is None:
            texts.append(line)
            continue
        if name:
            yield name, _one_line(" ".join(texts))
        name, texts = item["name"], [item["text"] or ""]
    if name:
        yield name, _one_line(" ".join(texts))


def _numpy_items(block: list[str]) -> Iterator[tuple[str, str]]:
    names, texts = list[str](), list[str]()
    for line in block:
        item = _NAMES.fullmatch(line.rstrip()) if line.strip() and not _indent(line) else None
        if item is None:
            texts.append(line)
            continue
        yield from ((name, _one_line(" ".join(texts))) for name in names)
        names = [name.strip().lstrip("*") for name in item["names"].split(",")]
        texts = []
    yield from ((name, _one_line(" ".join(texts))) for name in names)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _one_line(text: str) -> str:
    return " ".join(text.split())
