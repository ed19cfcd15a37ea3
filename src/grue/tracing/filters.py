"""Filter the messages of a trace."""

import re
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Struct

from grue.errors import MCPConfigError
from grue.protocol.tools.names import MCP_PREFIX
from grue.runtime.trace.format import TraceLine
from grue.runtime.trace.reader import RecordedLine
from grue.tracing.message_words import kind_of, kind_of_line, name_of, severity_of
from grue.tracing.reading import EpisodeBody, EpisodeEnvelope, known_kinds
from grue.tracing.turn_slices import turn_of


class Filter(Struct, frozen=True, kw_only=True):
    """A filter for messages. A message passes if it matches one item of each attribute that is set."""

    turns: tuple[range, ...] = ()  # numbers of turns; 0 stands for messages outside turns
    messages: tuple[range, ...] = ()
    actors: frozenset[str] = frozenset()  # senders or receivers, in lower case
    kinds: frozenset[str] = frozenset()  # names of kinds, as `kind_of` returns them
    texts: tuple[str, ...] = ()  # case-folded; searched in the kind, values and JSON keys, not in field names
    failures: bool = False  # only messages that report a failure or a problem

    @classmethod
    def of(
        cls,
        *,
        turns: Iterable[str] = (),
        messages: Iterable[str] = (),
        actors: Iterable[str] = (),
        kinds: Iterable[str] = (),
        texts: Iterable[str] = (),
        facts: Iterable[str] = (),
        failures: bool = False,
    ) -> "Filter":
        """Make a filter from the texts that people write as options."""
        # `kinds`: a part of a name is enough if only one name begins with it or, if none does, contains it.
        # `facts`: further names that `kinds` may mean, such as those of facts whose hosts are not imported.
        # Raises `MCPConfigError` for a turn or message that is not a number or range, and for an unknown or
        # ambiguous kind.
        names = {*map(name_of, known_kinds().values()), *facts}
        return cls(
            turns=tuple(_range(each, "turn") for each in turns),
            messages=tuple(_range(each, "message") for each in messages),
            # In a chat, `mcp.` stands before the names of the servers.
            actors=frozenset(each for name in actors for each in (name.lower(), MCP_PREFIX + name.lower())),
            kinds=frozenset(_kind(kind, names) for kind in kinds),
            texts=tuple(spelling for text in texts for spelling in _spellings(text)),
            failures=failures,
        )

    def wants(self, envelope: EpisodeEnvelope) -> bool:
        """Return whether a message passes the filter."""
        return (
            self._wants_head(envelope, lambda: turn_of(envelope))
            and (not self.kinds or kind_of(envelope.body) in self.kinds)
            and self._fits(envelope)
        )

    def wants_line(self, line: RecordedLine[EpisodeBody]) -> bool:
        """Return whether a line's message passes the filter. Decode it only if its head is not enough."""
        return (
            self._wants_head(line.line, lambda: turn_of_line(line))
            and (not self.kinds or kind_of_line(line) in self.kinds)
            and (not (self.texts or self.failures) or self._fits(line.envelope()))
        )

    def _wants_head(self, head: EpisodeEnvelope | TraceLine, turn: Callable[[], int]) -> bool:
        return (
            (not self.turns or any(turn() in turns for turns in self.turns))
            and (not self.messages or any(head.seq in messages for messages in self.messages))
            and (not self.actors or not self.actors.isdisjoint((head.sender.lower(), head.receiver.lower())))
        )

    def _fits(self, envelope: EpisodeEnvelope) -> bool:
        if self.failures and severity_of(envelope.body) not in ("fail", "warn"):
            return False
        if not self.texts:
            return True
        said = "\n".join((kind_of(envelope.body), *_values(envelope.body))).casefold()
        return any(text in said for text in self.texts)


def _values(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Struct():
            for name in value.__struct_fields__:
                yield from _values(getattr(value, name))
        case dict():
            for key, inner in value.items():
                yield str(key)
                yield from _values(inner)
        case list() | tuple() | set() | frozenset():
            for inner in value:
                yield from _values(inner)
        case int() | float() if not isinstance(value, bool):
            yield str(value)
        case msgspec.Raw():
            yield bytes(value).decode(errors="replace")


EVERYTHING = Filter()


def turn_of_line(line: RecordedLine[EpisodeBody]) -> int:
    """Return the number of the turn that a line's message belongs to, or 0 if it is outside turns."""
    return line.line.turn or turn_of(line.envelope())


def _range(written: str, what: str) -> range:
    match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", written, re.ASCII)
    if match is None:
        raise MCPConfigError(
            f"{written!r} is not a {what}. Write a number, such as 3, or a range, such as 3-7."
        )
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise MCPConfigError(f"{written!r} is not a range of {what}s: it ends before it begins.")
    return range(first, last + 1)


def _kind(written: str, names: Iterable[str]) -> str:
    kinds = {name.lower(): name for name in names}
    word = written.strip().lower()
    if word in kinds:
        return kinds[word]
    for fits in (str.startswith, str.__contains__):
        found = [kind for name, kind in kinds.items() if word and fits(name, word)]
        if len(found) == 1:
            return found[0]
        if found:
            raise MCPConfigError(
                f"{written!r} can be more than one kind of message: {', '.join(sorted(found))}."
            )
    import difflib

    (nearest,) = difflib.get_close_matches(word, kinds, n=1, cutoff=0.0)
    raise MCPConfigError(f"There is no kind of message {written!r}; the nearest is {kinds[nearest]}.")


def _spellings(text: str) -> set[str]:
    """Return a text, case-folded, as it is and as it looks in JSON, where quotes and newlines are escaped."""
    # Bytes from a shell that are not valid text become surrogates, which JSON cannot hold.
    plain = text.encode(errors="replace").decode().casefold()
    return {plain, msgspec.json.encode(plain).decode()[1:-1]}
