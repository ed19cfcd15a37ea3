"""`FactEvents`: calls a function of the host's user with the events of the host's facts."""

from collections.abc import Callable
from typing import Any

from grue import messages as m
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import Fact


class FactEvents:
    """An observer that calls a function with the name and the fields of each event that facts make.

    Add it to a recorder: `recorder.add(FactEvents(print, FACTS))`.

    Args:
        on_event: Called as `on_event(name, fields)`, in the thread that records the fact. What it raises
            reaches the code that records.
        kinds: The facts.
    """

    def __init__(
        self, on_event: Callable[[str, m.JsonObject], object], kinds: tuple[type[Fact], ...]
    ) -> None:
        self._on_event = on_event
        self._kinds = kinds

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Call the function if the envelope has such a fact."""
        del line
        if isinstance(envelope.body, self._kinds):
            for event in envelope.body.log_lines():
                self._on_event(event.event, event.fields)
