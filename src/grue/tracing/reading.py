"""Open an episode's trace file and decode its messages, also facts of hosts that are not imported.

For such a fact, a class is created from its `type` and its fields, whose values are plain JSON.
"""

import contextlib
import functools
import inspect
import keyword
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.runtime.actor import ActorFailed
from grue.runtime.trace.format import FORMAT, PayloadReference, TraceHeader, TraceLine, trace_in
from grue.runtime.trace.reader import Trace, TraceReader
from grue.runtime.trace.recorder import Envelope
from grue.tracing import facts

_KIND = re.compile(r"[A-Za-z_][\w.]{0,80}", re.ASCII)
_NAME = re.compile(r"[A-Za-z]\w{0,80}", re.ASCII)
_MOST_KINDS = 1000  # most generated classes in memory: a hostile file may need any number


class _Tag(Struct):
    type: str = ""


def can_be_fact(tag: str) -> bool:
    """Return whether a tag can be the name of a host's fact."""
    return _KIND.fullmatch(tag) is not None


def unknown_fact(body: bytes) -> facts.Fact:
    """Decode a fact whose class is not known; raises `msgspec.DecodeError`."""
    fields: m.JsonObject = msgspec.json.decode(body, type=dict)
    tag = str(fields.pop("type"))
    kind = _class_for(tag, tuple(fields), has_turn=type(fields.get("turn")) is int)
    return kind(**dict(zip(kind.__struct_fields__, fields.values(), strict=True)))


def with_hosts_fields(fact: facts.Fact, body: bytes) -> facts.Fact:
    """Return `fact`; if its class is in `EPISODE_FACTS`, with the fields that a host has added in `body`."""
    if type(fact) not in facts.EPISODE_FACTS:
        return fact
    fields: m.JsonObject = msgspec.json.decode(body, type=dict)
    added = tuple(name for name in fields if name != "type" and name not in fact.__struct_fields__)
    if not added:
        return fact
    for declared in facts.subclasses_of(type(fact)):
        if not set(added).isdisjoint(declared.__struct_fields__):
            with contextlib.suppress(msgspec.ValidationError):  # another host's fact: try the next class
                return msgspec.json.decode(body, type=declared)
    kind = _class_for(str(fact.__struct_config__.tag), added, type(fact))
    names = kind.__struct_fields__[-len(added) :]
    own = msgspec.structs.asdict(fact)
    return kind(**own, **dict(zip(names, (fields[name] for name in added), strict=True)))


@functools.lru_cache(maxsize=_MOST_KINDS)
def _class_for(
    tag: str, fields: tuple[str, ...], base: type[facts.Fact] = facts.Fact, *, has_turn: bool = False
) -> type[facts.Fact]:
    # Readers expect `turn` to be a turn's number. Store any other value under another attribute name.
    usable = [name for name in fields if _usable(name, base) and (name != "turn" or has_turn)]
    names = {name: name if name in usable else f"field_{number}" for number, name in enumerate(fields)}
    try:
        kind: Any = msgspec.defstruct(
            tag,
            [(python_name, object) for python_name in names.values()],
            bases=(base,),
            frozen=True,
            kw_only=True,
            tag=tag,
            rename={python_name: name for name, python_name in names.items() if python_name != name},
        )
    except ValueError as error:
        # msgspec refuses field names with quotes, backslashes or control characters, as in a hostile file.
        raise msgspec.ValidationError(f"a field has no usable name: {error}") from error
    return kind  # type: ignore[no-any-return]


def _usable(name: str, base: type[facts.Fact]) -> bool:
    # A field must not replace an attribute of `Fact` that readers use, such as `summary`.
    plain = _NAME.fullmatch(name) is not None and not keyword.iskeyword(name)
    return plain and not name.startswith(("_", "field_")) and not hasattr(base, name)


EpisodeBody: TypeAlias = m.AnyMessage | facts.Fact | ActorFailed  # what an episode's trace can hold

EpisodeEnvelope: TypeAlias = Envelope[EpisodeBody]
EpisodeTrace: TypeAlias = Trace[EpisodeBody]
NOTES = "trace"  # the receiver of notes and facts, which are sent to no actor


def known_kinds() -> dict[str, type[Struct]]:
    """Return the classes of all messages by tag: grue's own, and the facts of the hosts that are loaded."""
    own = {str(kind.__struct_config__.tag): kind for kind in (*get_args(m.AnyMessage), ActorFailed)}
    return {**own, **facts.registered_facts()}


def union_of(kinds: Iterable[type[Struct]]) -> Any:
    """Return the union of message classes, in the form that msgspec accepts."""
    return functools.reduce(operator.or_, kinds)


# Make the first decoder now: if two threads made it at the same time later, msgspec could crash the process.
msgspec.json.Decoder(union_of(known_kinds().values()))


class EpisodeReader(TraceReader[EpisodeBody]):
    """An iterable of an episode's envelopes, which reads one line at a time."""

    def __init__(self, path: Path) -> None:
        self.kinds = known_kinds()
        super().__init__(path, union_of(self.kinds.values()))

    def _body(self, line: TraceLine, written: bytes) -> EpisodeBody:
        try:
            body: EpisodeBody = self._bodies.decode(written)
        except msgspec.ValidationError:
            # Only a message to no actor (`NOTES`) can be a host's fact. Raise for any other unknown message:
            # a replay would have to know what it means.
            tag = msgspec.json.decode(written, type=_Tag).type if line.receiver == NOTES else ""
            if tag in self.kinds or not can_be_fact(tag):
                raise
            return unknown_fact(written)
        return with_hosts_fields(body, written) if isinstance(body, facts.Fact) else body

    def follow(
        self,
        stop: Callable[[], bool],
        poll_s: float = 0.2,
        *,
        over: Callable[[EpisodeEnvelope], bool] | None = None,
    ) -> Iterator[EpisodeEnvelope]:
        """Yield messages as they are written, like `TraceReader.follow`; by default until `has_ended`."""
        ended = False

        def is_over(_last: EpisodeEnvelope) -> bool:
            return ended

        for envelope in super().follow(stop, poll_s, over=over or is_over):
            ended = has_ended(envelope.body, before=ended)
            yield envelope


def has_ended(body: Struct, *, before: bool) -> bool:
    """Return whether an episode has ended, given its next message and whether it had ended `before` that.

    Servers may end after the episode, as in `grue chat`, and then the trace has further messages.
    """
    return isinstance(body, facts.EpisodeEnded) or (before and not isinstance(body, facts.EpisodeResumed))


def open_episode(path: str | PathLike[str]) -> EpisodeReader:
    """Open a trace file, or the trace file in a run folder, to read it a line at a time.

    Raises:
        MCPConfigError: `path` cannot be the path of a file.
        TraceError: The file is missing, not a trace, or of a later format. If a line is damaged, the reader
            raises this when it comes to the line.
    """
    return EpisodeReader(trace_in(path))


def read_episode(path: str | PathLike[str]) -> EpisodeTrace:
    """Read a whole trace file, or the trace file in a run folder, into memory.

    Raises:
        MCPConfigError: `path` cannot be the path of a file.
        TraceError: The file is missing, not a trace, of a later format, or damaged.
    """
    return open_episode(path).whole()


def trace_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a line of a trace file, with the loaded hosts' facts."""
    # The schema accepts unknown fields, because later versions may add fields to a message.
    types = (TraceHeader, TraceLine, PayloadReference, union_of(known_kinds().values()))
    (header, line, reference, body), definitions = msgspec.json.schema_components(
        types, schema_hook=_any_json, ref_template="#/$defs/{name}"
    )
    for definition in definitions.values():
        definition["description"] = inspect.cleandoc(definition.get("description", ""))
    definitions["TraceLine"]["properties"]["body"] = {"anyOf": [body, _FACT, reference]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a grue trace, format {FORMAT}",
        "description": "The first line is a TraceHeader, every further one a TraceLine.",
        "anyOf": [header, line],
        "$defs": definitions,
    }


_FACT: dict[str, Any] = {
    "description": "A fact of a host: its tag is the host's name, a dot and the kind.",
    "type": "object",
    "properties": {"type": {"type": "string", "pattern": r"^[A-Za-z_]\w*\.\w[\w.]*$"}},
    "required": ["type"],
}


def _any_json(kind: type) -> dict[str, Any]:
    # Of the types without a schema, messages use only `object`: a JSON value of a server, model or host.
    if kind is not object:
        raise NotImplementedError
    return {"description": "Any JSON value."}
