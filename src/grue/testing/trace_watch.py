"""Assertions about the messages of a trace: what happened, in which order, what never did, and why.

```python
watch = TraceWatch()
runner = Runner(llm=..., servers=..., recorder=watch.recorder)
runner.run_turn(request)
watch.happened(ToolTimedOut, call_id="call_1")
watch.in_order(OpenSession, SessionOpened, TurnCompleted)
watch.never(McpDisabled)
watch.caused_by(ToolReturned, CallTools)
```

A failed assertion shows the messages of the trace, one line each.
"""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from grue.runtime.safe_text import printable
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tracing.message_words import summarize
from grue.tracing.reading import read_episode

_MOST_SHOWN = 60
_MOST_CHARS = 100


class TraceWatch:
    """The messages of one or more turns, and assertions about them.

    Args:
        clock: Seconds, for the times of the messages; `None`: the system's clocks.

    Attributes:
        recorder: Give it to a `Runner`; everything that it records is watched. It writes no file.
        envelopes: The messages so far, in order.

    Source: L18
    """

    def __init__(self, *, clock: Callable[[], float] | None = None) -> None:
        self.envelopes: list[Envelope[Any]] = []
        self.recorder = Recorder() if clock is None else Recorder(clock=clock, wall_clock=clock)
        self.recorder.add(self._keep)

    @classmethod
    def of(cls, path: str | PathLike[str]) -> Self:
        """Return the messages of a trace file.

        Raises:
            TraceError: The file cannot be read.
        """
        watch = cls()
        watch.envelopes.extend(read_episode(Path(path)).envelopes)
        return watch

    def bodies(self, *kinds: type) -> list[Any]:
        """Return the messages of these kinds, in order; all of them without kinds."""
        return [each.body for each in self.envelopes if not kinds or isinstance(each.body, kinds)]

    def happened(self, kind: type, *, times: int | None = None, **fields: Any) -> Any:
        """Assert that a message of this kind was recorded, and return the first one.

        Args:
            kind: A class of `grue.messages` or `grue.tracing.facts`, or of your own messages and facts.
            times: How often; `None`: at least once.
            fields: Values that the message's fields must have.

        Raises:
            AssertionError: It was not; the text shows the messages of this kind, or all of them.
        """
        found = [body for body in self.bodies(kind) if _has(body, fields)]
        if (times is None and not found) or (times is not None and len(found) != times):
            wanted = "at least once" if times is None else f"{times} times"
            raise self._failure(f"{_described(kind, fields)} happened {len(found)} times, not {wanted}", kind)
        return found[0] if found else None

    def never(self, kind: type, **fields: Any) -> None:
        """Assert that no message of this kind, with these fields, was recorded.

        Raises:
            AssertionError: One was; the text shows them.
        """
        found = [body for body in self.bodies(kind) if _has(body, fields)]
        if found:
            raise self._failure(f"{_described(kind, fields)} happened {len(found)} times, not never", kind)

    def in_order(self, *wanted: object) -> None:
        """Assert that these messages were recorded in this order; others may lie between them.

        Args:
            wanted: Kinds of messages, or whole messages.

        Raises:
            AssertionError: They were not; the text names the first that is missing.
        """
        position = 0
        for index, each in enumerate(wanted):
            while position < len(self.envelopes) and not _is(self.envelopes[position].body, each):
                position += 1
            if position == len(self.envelopes):
                earlier = ", ".join(map(_name, wanted[:index])) or "the beginning"
                raise self._failure(f"no {_name(each)} after {earlier}")
            position += 1

    def caused_by(self, kind: type, cause: type) -> None:
        """Assert that each message of `kind` was caused by one of `cause`, at once or through others.

        Raises:
            AssertionError: One was not, or there is no message of `kind`.
        """
        by_number = {each.seq: each for each in self.envelopes}
        found = [each for each in self.envelopes if isinstance(each.body, kind)]
        if not found:
            raise self._failure(f"{kind.__name__} did not happen")
        for envelope in found:
            chain = [envelope]
            while chain[-1].cause in by_number:
                chain.append(by_number[chain[-1].cause])
            if not any(isinstance(each.body, cause) for each in chain[1:]):
                causes = " <- ".join(f"{each.seq} {type(each.body).__name__}" for each in chain)
                raise self._failure(f"{kind.__name__} was not caused by {cause.__name__}, but {causes}")

    def _keep(self, envelope: Envelope[Any], line: bytes) -> None:
        del line
        self.envelopes.append(envelope)

    def _failure(self, text: str, kind: type | None = None) -> AssertionError:
        shown = [each for each in self.envelopes if kind and isinstance(each.body, kind)] or self.envelopes
        lines = [_line(each) for each in shown[:_MOST_SHOWN]]
        if len(shown) > _MOST_SHOWN:
            lines.append(f"... and {len(shown) - _MOST_SHOWN} more")
        return AssertionError("\n".join([f"{text}. The trace:", *(lines or ["(no messages)"])]))


def _is(body: object, wanted: object) -> bool:
    return isinstance(body, wanted) if isinstance(wanted, type) else body == wanted


def _name(wanted: object) -> str:
    return wanted.__name__ if isinstance(wanted, type) else printable(repr(wanted), _MOST_CHARS)


def _has(body: object, fields: dict[str, Any]) -> bool:
    return all(getattr(body, name, _has) == value for name, value in fields.items())


def _described(kind: type, fields: dict[str, Any]) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return f"{kind.__name__}({given})" if given else kind.__name__


def _line(envelope: Envelope[Any]) -> str:
    body = envelope.body
    # A reply to an ask may be a plain value.
    words = ascii(summarize(body))[1:-1] if isinstance(body, Struct) else ascii(body)
    words, name = words[:_MOST_CHARS], type(body).__name__
    return (
        f"{envelope.seq:>5}  turn {envelope.turn}  {envelope.sender} -> {envelope.receiver}  {name}  {words}"
    )
