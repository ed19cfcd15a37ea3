"""Log an episode's events as records of a `logging.Logger`, in the form that the requirements ask for."""

import logging
from typing import Any

from grue.runtime.trace.recorder import Envelope
from grue.tracing.observers.events import Event, EventFeed

_RESERVED = {*vars(logging.makeLogRecord({})), "message", "asctime"}
"""Names that `logging` does not allow in `extra`."""


class LoggerObserver:
    """An observer that gives `logger` each event's text, with type and fields as the record's attributes.

    Args:
        logger: A logger, or anything with its `info`, `warning` and `error`.
        episode_id: Carried by every record; `EpisodeStarted` replaces it.

    Attributes:
        logger: The logger.
    """

    def __init__(self, logger: logging.Logger, *, episode_id: str = "") -> None:
        self.logger = logger
        self._feed = EventFeed(episode_id)
        self._log = {"info": logger.info, "warning": logger.warning, "error": logger.error}

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Log the events that `envelope` makes."""
        del line
        for event in self._feed.feed(envelope):
            self._log[event.level](event.message, extra=_extra(event))


def _extra(event: Event) -> dict[str, object]:
    """Return the event's labels; a name that `logging` reserves gets a trailing underscore."""
    return {f"{name}_" if name in _RESERVED else name: value for name, value in event.labels().items()}
