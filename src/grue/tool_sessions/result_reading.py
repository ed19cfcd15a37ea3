"""Read parts of a tool's whole result, for the built-in tool `read_result`, whose calls run in a thread.

A result may be megabytes of hostile text, and a model writes the arguments. So an answer's length and a
search's time are bounded, and a pattern has no look-around or back references: it is matched in linear time.
"""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.errors import MCPError
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.results import in_lines, whole_text, without_middle

_BLOCK = 1_024  # characters that are searched at once for a line number or a pattern
_LONGEST_LINE = 4_000  # a longer line is searched in overlapping pieces of this length
_OVERLAP = 400
_SHOWN_OF_LINE = 300
_MOST_MATCHES = 100
_LONGEST_PATTERN = 500
_REGEX_BYTES = 65_536
_SEARCH_S = 2.0
_MOST_STEPS = 50
_NAMED_KEYS = 20
_HEADER = 200  # characters that are reserved for the line that describes a part
_Test: TypeAlias = Callable[[str], bool]


class CannotReadError(Exception):
    """The arguments cannot be used; the text says why, for the model."""


class Wanted(Struct, frozen=True, kw_only=True):
    """The arguments of `read_result`. The tool's definition describes them to the model."""

    handle: str
    first_line: int | None = None
    last_line: int | None = None
    pattern: str | None = None
    json_path: str | None = None
    skip: int = 0


def wanted(arguments: m.JsonObject) -> Wanted:
    """Convert the arguments of `read_result`; raises `CannotReadError` if they are wrong."""
    try:
        asked = msgspec.convert(arguments, Wanted)
    except msgspec.ValidationError as error:
        raise CannotReadError(f"{error}. The arguments are: {', '.join(Wanted.__struct_fields__)}") from error
    by_line = asked.first_line is not None or asked.last_line is not None
    if by_line + (asked.pattern is not None) + (asked.json_path is not None) > 1:
        raise CannotReadError("give lines, a pattern or a json_path, not several of them")
    if asked.skip < 0 or (asked.first_line is not None and asked.first_line < 1):
        raise CannotReadError("skip counts from 0, and lines from 1")
    return asked


def read_part(
    result: m.ToolCallResult,
    asked: Wanted,
    max_chars: int,
    *,
    unwraps: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Return the part of `result` that `asked` names, cut to about `max_chars`; raises `CannotReadError`."""
    room = max(1, max_chars - _HEADER)
    if asked.json_path is not None:
        return _select(result.content, asked.json_path, asked.skip, room)
    text = whole_text(result, unwraps=unwraps)
    if asked.pattern is not None:
        return _search(text, asked.pattern, asked.skip, room, clock)
    return _lines(text, asked.first_line or 1, asked.last_line, asked.skip, room)


def _lines(text: str, first: int, last: int | None, skip: int, room: int) -> str:
    lines = text.count("\n") + 1
    if first > lines:
        raise CannotReadError(f"the result has {lines} lines")
    last = lines if last is None else min(last, lines)
    if last < first:
        raise CannotReadError("last_line is before first_line")
    start, end = _start_of(text, first), _start_of(text, last + 1)
    end = len(text) if end < 0 else end - 1
    begin = min(start + skip, end)
    shown = text[begin : min(begin + room, end)]
    head = f"[lines {first} to {last} of {lines}" + (f", without {skip} characters" if skip else "")
    left = end - begin - len(shown)
    if left:
        head += f"; {left} characters of them are left out at the end: go on with the same lines and"
        head += f" skip={skip + len(shown)}"
    return f"{head}]\n{shown}"


def _search(text: str, pattern: str, skip: int, room: int, clock: Callable[[], float]) -> str:
    test = _test_of(pattern)
    # With an anchor, a line may match though its block does not: then each line is tested by itself.
    quick = test if not re.search(r"[$^]|\\[Az]", pattern) else lambda _: True
    until = clock() + _SEARCH_S
    found: list[str] = []
    seen, size, stopped = 0, 0, ""
    for line, offset, piece in _pieces(text, quick):
        if clock() > until:
            stopped = f"the search stopped after {_SEARCH_S:g} s at line {line}: use a simpler pattern"
            break
        if not test(piece):
            continue
        seen += 1
        if seen <= skip:
            continue
        where = f"{line}:" if not offset else f"{line} (from character {offset + 1}):"
        shown = f"{where} {_around(piece, test)}"
        if found and (size + len(shown) > room or len(found) == _MOST_MATCHES):
            stopped = f"there are more: go on with skip={skip + len(found)}"
            break
        found.append(shown[:room])
        size += len(shown) + 1
    if not found:
        return f"[{stopped or 'no line matches' + (' any more' if skip else '')}]"
    head = f"[{len(found)} matching lines" + (f", after {skip} others" if skip else "")
    return "\n".join([f"{head}; {stopped or 'there are no more'}]", *found])


def _select(content: object, path: str, skip: int, room: int) -> str:
    steps = _steps_of(path)
    if isinstance(content, str):
        try:
            content = _opened(msgspec.Raw(content.encode()))
        except (msgspec.DecodeError, RecursionError):
            raise CannotReadError("the result is not JSON: read its lines, or search it") from None
    if not any(isinstance(step, _Every | slice) for step in steps):
        value = _only(content, steps)
        opened = _opened(value)
        text = opened if isinstance(opened, str) else in_lines(_compact(value))
        shown = text[skip : skip + room]
        left = len(text) - skip - len(shown)
        head = f"[{path} is {_kind(value)}"
        more = f"; {left} characters are left out at the end: go on with skip={skip + len(shown)}"
        return f"{head}{more if left > 0 else ''}]\n{shown}"
    found: list[str] = []
    size, more = 0, ""
    for number, value in enumerate(_selected(content, steps)):
        if number < skip:
            continue
        shown = without_middle(_compact(value), room)
        if found and size + len(shown) > room:
            more = f"; there are more: go on with skip={number}"
            break
        found.append(shown)
        size += len(shown) + 1
    return "\n".join([f"[{len(found)} values of {path}, one a line{more}]", *found])


def _start_of(text: str, line: int) -> int:
    """Return where a line begins; -1: there is no such line. Skip whole blocks of the text, to be fast."""
    at, left = 0, line - 1
    while at < len(text) and (newlines := text.count("\n", at, at + _BLOCK)) < left:
        at, left = at + _BLOCK, left - newlines
    for _ in range(left):
        at = text.find("\n", at) + 1
        if not at:
            return -1
    return at


def _pieces(text: str, quick: _Test) -> Iterator[tuple[int, int, str]]:
    """Yield pieces of lines: line number, offset, text. Of a block that fails `quick`, yield one line."""
    at, number = 0, 1
    while at < len(text):
        end = text.find("\n", at + _BLOCK) + 1 or len(text)
        lines = text[at:end].removesuffix("\n").split("\n")
        fails = end - at <= 2 * _BLOCK and not quick(text[at:end])
        for each, line in enumerate(lines[:1] if fails else lines, start=number):
            for offset in range(0, max(1, len(line) - _OVERLAP), _LONGEST_LINE - _OVERLAP):
                yield each, offset, line[offset : offset + _LONGEST_LINE]
        at, number = end, number + len(lines)


def _test_of(pattern: str) -> _Test:
    import jsonschema_rs

    if len(pattern) > _LONGEST_PATTERN:
        raise CannotReadError(f"a pattern has at most {_LONGEST_PATTERN} characters")
    options = jsonschema_rs.RegexOptions(size_limit=_REGEX_BYTES, dfa_size_limit=10 * _REGEX_BYTES)
    try:
        found: Any = jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=options)
    except (jsonschema_rs.ValidationError, ValueError):
        raise CannotReadError(
            "the pattern is not a regular expression, has look-around or back references, or is too large;"
            " to find a text as it is, put a backslash before each special character"
        ) from None
    return found.is_valid  # type: ignore[no-any-return]  # of a class without types


def _around(piece: str, test: _Test) -> str:
    """Return `piece`. If it is long, return only the part around the end of its shortest first match."""
    if len(piece) <= _SHOWN_OF_LINE:
        return piece
    low, high = 1, len(piece)
    # Find the shortest prefix with a match: there a match ends, unless the pattern tests what follows, as `$`
    # and `\b` do.
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if test(piece[:middle]) else (middle + 1, high)
    start = max(0, min(low - _SHOWN_OF_LINE // 2, len(piece) - _SHOWN_OF_LINE))
    end = start + _SHOWN_OF_LINE
    return f"{'…' if start else ''}{piece[start:end]}{'…' if end < len(piece) else ''}"


class _Every(Struct, frozen=True):
    """A step of a JSON path, such as `[*]`, that selects all members or items of a value."""


_Step: TypeAlias = str | int | slice | _Every

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]\s'"*]+)
    |\.\*|\[\*\](?P<every>)
    |\[(?P<index>-?\d{1,9})\]
    |\[(?P<start>-?\d{0,9}):(?P<stop>-?\d{0,9})\]
    |\['(?P<single>(?:[^'\\]|\\.)*)'\]
    |\["(?P<double>(?:[^"\\]|\\.)*)"\]""",
    re.VERBOSE,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _steps_of(path: str) -> list[_Step]:
    """Return the steps of a JSON path; raises `CannotReadError` for an unsupported step or too many steps."""
    rest = path.strip().removeprefix("$")
    if rest and rest[0] not in ".[":
        rest = f".{rest}"
    steps: list[_Step] = []
    at = 0
    while at < len(rest):
        found = _STEP.match(rest, at)
        if found is None or len(steps) == _MOST_STEPS:
            raise CannotReadError(
                f"json_path cannot be read from {rest[at : at + 40]!r} on: steps are .name, ['name'], [3],"
                f" [0:10] and [*], at most {_MOST_STEPS}"
            )
        steps.append(_step(found))
        at = found.end()
    return steps


def _step(found: re.Match[str]) -> _Step:
    parts = found.groupdict()
    quoted = parts["single"] if parts["single"] is not None else parts["double"]
    if quoted is not None:
        return _ESCAPED.sub(r"\1", quoted)
    if parts["name"] is not None:
        return str(parts["name"])
    if parts["index"] is not None:
        return int(parts["index"])
    if parts["start"] is not None:
        start, stop = parts["start"], parts["stop"]
        return slice(int(start) if start.strip("-") else None, int(stop) if stop.strip("-") else None)
    return _Every()


_LEVELS: dict[bytes, msgspec.json.Decoder[Any]] = {
    b"{": msgspec.json.Decoder(dict[str, msgspec.Raw]),
    b"[": msgspec.json.Decoder(list[msgspec.Raw]),
}
_VALUES: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def _opened(value: object) -> object:
    """Decode only the first level of a value that is raw JSON: its members or items stay raw JSON.

    A number that msgspec cannot decode, such as `1e999`, stays raw JSON, too.
    """
    if not isinstance(value, msgspec.Raw):
        return value
    first = bytes(memoryview(cast("Any", value))[:64]).lstrip()[:1]
    try:
        return _LEVELS.get(first, _VALUES).decode(value)
    except msgspec.ValidationError:
        return value


def _only(value: object, steps: list[_Step]) -> object:
    for step in steps:
        opened = _opened(value)
        try:
            value = opened[step]  # type: ignore[index]  # raises if `opened` has no such part
        except (KeyError, IndexError, TypeError):
            raise CannotReadError(f"{_shown_step(step)} is not there: {_described(opened)}") from None
        if isinstance(opened, str):
            raise CannotReadError(f"{_shown_step(step)} is not there: it is a text") from None
    return value


def _selected(value: object, steps: list[_Step]) -> Iterator[object]:
    """Yield the values that a path with wildcards or slices selects; missing parts are skipped."""
    if not steps:
        yield value
        return
    opened, step, rest = _opened(value), steps[0], steps[1:]
    match opened, step:
        case dict(), _Every():
            chosen = list(opened.values())
        case list(), _Every():
            chosen = opened
        case list(), slice():
            chosen = opened[step]
        case dict(), str() if step in opened:
            chosen = [opened[step]]
        case list(), int() if -len(opened) <= step < len(opened):
            chosen = [opened[step]]
        case _:
            chosen = []
    for each in chosen:
        yield from _selected(each, rest)


def _shown_step(step: _Step) -> str:
    return f"[{step}]" if isinstance(step, int) else f".{step:.80}" if isinstance(step, str) else "[...]"


def _described(value: object) -> str:
    if not isinstance(value, dict):
        return f"it is {_kind(value)}"
    keys = ", ".join(key[:40] for key in [*value][:_NAMED_KEYS])
    more = f" and {len(value) - _NAMED_KEYS} more" if len(value) > _NAMED_KEYS else ""
    return f"it is an object with the members {keys}{more}" if value else "it is an empty object"


def _kind(value: object) -> str:
    match _opened(value):
        case dict() as members:
            return f"an object of {len(members)} members"
        case list() as items:
            return f"an array of {len(items)} values"
        case str():
            return "a text"
        case bool() | None:
            return "a literal"
        case _:
            return "a number"


def _compact(value: object) -> str:
    return (bytes(value) if isinstance(value, msgspec.Raw) else msgspec.json.encode(value)).decode()


UNKNOWN = (
    "no result is kept under the handle {handle!r}. Copy the handle as it was told. If it is right, the"
    " result is gone: call its tool again, if that does no harm"
)


class ResultReader(Struct, frozen=True):
    """Answers the calls of `read_result` in one turn; `result_of` returns the whole result for a handle."""

    result_of: Callable[[str], m.ToolCallResult | None]
    max_chars: int
    unwraps: bool  # as in `whole_text`

    def read_result(self, arguments: m.JsonObject) -> m.ToolCallResult:
        """Answer a call of `read_result` with the part of the result that `arguments` ask for."""
        try:
            asked = wanted(arguments)
            result = self.result_of(asked.handle)
            if result is None:
                raise CannotReadError(UNKNOWN.format(handle=asked.handle[:80]))
            part = read_part(result, asked, self.max_chars, unwraps=self.unwraps)
            return tool_results.success(part)
        except (CannotReadError, MCPError) as error:
            return tool_results.call_failed(str(error))
