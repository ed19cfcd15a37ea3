"""Ask the person at the terminal: whether to make tool calls, and for input that a server requests."""

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, Protocol

from msgspec import Struct

from grue import messages as m
from grue.cli.call import json_value
from grue.cli.chat import lines
from grue.cli.chat.screen import Screen
from grue.cli.saying import say
from grue.engine.approval import NOT_SHOWN, forget_typed
from grue.errors import MCPConfigError
from grue.policies import ApprovalDecision, ApprovalQuestion
from grue.protocol.json_text import digest
from grue.runtime.safe_text import printable, shown_whole
from grue.runtime.secrets.redaction import Redaction
from grue.tool_sessions.server_requests import Declined, ElicitationRequest

MAX_LINE = 8 * 2**20  # the most bytes of a line


class Reader(Protocol):
    """Reads the user's input; `asks` says whether a person can be asked."""

    asks: bool

    def read(self) -> str | None:
        """Return what the user types next, one or more lines; `None` at the end of the input."""

    def forget(self) -> None:
        """Discard what was typed before now, so that only keys pressed from now on answer a question."""

    def answer(self, question: str, default: str = "") -> str | None:
        """Ask, and return one line; `None`: the input ended. `default`: the line if only Enter is pressed."""


class LineReader:
    """Reads lines of `source`. If a line ends with a backslash, the input goes on in the next line."""

    def __init__(self, source: BinaryIO, *, asks: bool) -> None:
        self._source = source
        self.asks = asks

    def read(self) -> str | None:
        """Return an input; `None`: the source has ended. Raises `MCPConfigError` if a line is too long."""
        if self.asks:
            sys.stdout.write("> ")
            sys.stdout.flush()
        lines: list[str] = []
        while (line := self._line()) is not None:
            lines.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                break
        return "\n".join(lines) if lines else None

    def forget(self) -> None:
        """If the input is a terminal, discard what was typed before now."""
        if self.asks:
            forget_typed(self._source)

    def answer(self, question: str, default: str = "") -> str | None:
        """Print `question` on stderr; return the next line (`default` if empty); `None`: the input ended."""
        say(question, err=True)
        line = self._line()
        return None if line is None else line.strip() or default

    def _line(self) -> str | None:
        line = self._source.readline(MAX_LINE + 1)
        if len(line) > MAX_LINE:
            while line and not line.endswith(b"\n"):
                line = self._source.readline(MAX_LINE)
            raise MCPConfigError(f"A line of the input is longer than {MAX_LINE // 2**20} MiB: shorten it.")
        return line.decode("utf-8", errors="replace").rstrip("\r\n") if line else None


_LABEL_CHARS = 200
_MOST_FIELDS = 50
_TRUE, _FALSE = frozenset(["y", "yes", "true", "1"]), frozenset(["n", "no", "false", "0"])


class Field(Struct, frozen=True, kw_only=True):
    """One field of a form."""

    name: str
    label: str
    kind: str = "string"  # the type's name in JSON Schema
    options: Mapping[str, str] = {}  # the values to choose from, and how each is shown; empty: any value
    default: str = ""
    required: bool = False

    @property
    def prompt(self) -> str:
        """The text before the cursor, such as `Colour (red | blue), may be empty: `."""
        choice = f" ({' | '.join(self.options.values())})" if self.options else ""
        may = "" if self.required else ", may be empty"
        kind = "" if self.kind == "string" else f", {self.kind}"
        return printable(f"{self.label}{choice}{kind}{may}: ", _LABEL_CHARS)


def fields_of(schema: m.JsonObject) -> Iterator[Field]:
    """Yield the fields, 50 at most, of the form that a JSON Schema of an object describes."""
    properties = schema.get("properties")
    required = schema.get("required")
    for name, described in list(properties.items() if isinstance(properties, dict) else ())[:_MOST_FIELDS]:
        about: Mapping[str, Any] = described if isinstance(described, dict) else {}
        default, options = about.get("default"), _options(about)
        if options and isinstance(default, list):
            default = ", ".join(map(str, default))
        yield Field(
            name=name,
            label=str(about.get("title") or about.get("description") or name),
            kind=str(about.get("type") or "string"),
            options=options,
            default="" if default is None else default if isinstance(default, str) else json.dumps(default),
            required=isinstance(required, list) and name in required,
        )


def _options(about: Mapping[str, Any]) -> dict[str, str]:
    """Return a field's choices. MCP has four forms: for one or several values, with titles or without."""
    several = about.get("items")
    if isinstance(several, dict):
        about = several
    plain, titled = about.get("enum"), about.get("oneOf", about.get("anyOf"))
    if isinstance(plain, list):
        return {str(value): str(value) for value in plain}
    return {
        str(each["const"]): f"{each['const']}: {each.get('title', '')}"
        for each in (titled if isinstance(titled, list) else ())
        if isinstance(each, dict) and "const" in each
    }


def value_of(field: Field, text: str) -> Any:
    """Convert what the person wrote to the field's type. May raise `ValueError` or `RecursionError`."""
    if field.options:
        several = field.kind == "array"
        chosen = [each.strip() for each in text.split(",") if each.strip()] if several else [text]
        if not field.options.keys() >= {*chosen}:
            form = "some of these, separated by commas:" if several else "one of"
            raise ValueError(f"choose {form} {', '.join(field.options)}")
        return chosen if several else text
    match field.kind:
        case "boolean":
            if text.lower() not in _TRUE | _FALSE:
                raise ValueError("write yes or no")
            return text.lower() in _TRUE
        case "integer" | "number":
            return _number(text, whole=field.kind == "integer")
        case "string":
            return text
        case _:
            return json_value(text)


def _number(text: str, *, whole: bool) -> float:
    with contextlib.suppress(ValueError):
        number = int(text) if whole else float(text)
        if whole or math.isfinite(number):
            return number
    raise ValueError("write a whole number" if whole else "write a number that is not infinite")


NOBODY = "it needs an approval, and there is no terminal to ask at"
_ANSWER_CHARS = 1000


class Person:
    """Asks the person at the terminal. `reader` returns the `Reader` for the answers."""

    def __init__(self, reader: Callable[[], Reader], screen: Screen, redaction: Redaction) -> None:
        self._reader = reader
        self._screen = screen
        self._redaction = redaction
        self._always: set[tuple[str, str]] = set()

    def decide(self, question: ApprovalQuestion) -> ApprovalDecision:
        """Return the person's decision about a call. If nobody can be asked, the call is denied."""
        reader = self._reader()
        if not reader.asks:
            return question.deny(NOBODY)
        # If the tool's definition changes, the person is asked again, even after "always".
        tool = (question.name, question.definition_digest)
        if tool in self._always:
            return question.approve()
        rows = shown_whole(question.arguments)
        if rows is None:
            self._screen.tell(lines.complaint(f"{question.name} was denied: {NOT_SHOWN}."))
            return question.deny(NOT_SHOWN)
        self._screen.show(lines.question_lines(question, rows))
        reader.forget()
        while True:
            given = reader.answer("Call it? [y]es, [n]o, [a]lways, [e]dit, or why not: ") or ""
            match given.lower():
                case "y" | "yes":
                    return question.approve()
                case "a" | "always":
                    self._always.add(tool)
                    return question.approve()
                case "e" | "edit":
                    changed = self._edited(question)
                    if changed is not None:
                        return changed
                case "" | "n" | "no":
                    return question.deny("the user does not want this call")
                case _:
                    return question.deny(f"the user says: {given[:_ANSWER_CHARS]}")

    def fill_in(self, request: ElicitationRequest) -> m.JsonObject | Declined:
        """Ask the person for the input that a server requests. A `Declined` says why it was not given."""
        reader = self._reader()
        if not reader.asks:
            return Declined("there is no terminal to ask at")
        self._screen.show(lines.request_lines(request.server, request.message))
        reader.forget()
        if request.schema is None:
            done = reader.answer("Have you done it? [y/N]: ") or ""
            return {} if done.lower() in ("y", "yes") else Declined("the user has not done it")
        if (reader.answer("Answer the server? [y/N]: ") or "").lower() not in ("y", "yes"):
            return Declined("the user does not want to answer")
        filled: m.JsonObject = {}
        for field in fields_of(request.schema):
            given = self._filled(field)
            if isinstance(given, Declined):
                return given
            if given is not None:
                filled[field.name] = given
        return filled

    def _filled(self, field: Field) -> Any:
        """Return the value once it is valid; `None`: an optional field, left empty; `Declined`: at Ctrl-D."""
        while True:
            text = self._reader().answer(field.prompt, printable(field.default))
            if text is None:
                return Declined("the user has stopped filling in the form")
            if not text and not field.required:
                return None
            try:
                return value_of(field, text)
            except (ValueError, RecursionError) as error:
                self._screen.tell(lines.complaint(f"That cannot be used: {error}."))

    def _edited(self, question: ApprovalQuestion) -> ApprovalDecision | None:
        """Let the person edit the arguments. `None`: there is no usable edit, so ask about the call again."""
        before = json.dumps(question.arguments, ensure_ascii=False)
        if not before.isprintable():
            before = json.dumps(question.arguments)
        if self._redaction.redact_text(before) != before:
            self._screen.tell(lines.complaint("The arguments hold a secret, and cannot be edited here."))
            return None
        text = self._reader().answer("Arguments: ", before)
        if text is None:
            return None
        try:
            arguments = json_value(text)
        except (ValueError, RecursionError) as error:
            self._screen.tell(lines.complaint(f"That is not JSON: {error}."))
            return None
        if not isinstance(arguments, dict):
            self._screen.tell(lines.complaint("The arguments are a JSON object."))
            return None
        # Compare digests, because in Python `1 == True`, and a tool may tell `1` from `true`.
        same = digest(arguments) == question.arguments_digest
        return question.approve() if same else question.change(arguments)
