"""Add one observer to a recorder for each logger and each Langfuse client.

An agent, its manager and its orchestrator may each be given a logger and a client, often the same ones. They
share the agent's recorder, so the observers that exist already are found there, and no event is sent twice.
"""

import logging
from collections.abc import Iterator
from typing import Any

from grue import Recorder
from grue.hosting import LangfuseObserver, LoggerObserver


def add_loggers(recorder: Recorder, *loggers: Any, episode_id: str) -> None:
    """Add an observer for each logger, unless it gets the records already.

    A logger also gets the records that the loggers below it propagate.

    Args:
        recorder: The recorder.
        loggers: Loggers, or objects with `info`, `warning` and `error`; `None` is ignored.
        episode_id: Put into every record.
    """
    observed = [each.logger for each in recorder.observers if isinstance(each, LoggerObserver)]
    # The lowest first, because it propagates its records to the loggers above it.
    for logger in sorted(filter(None, loggers), key=_depth, reverse=True):
        if not any(logger is target for each in observed for target in _targets(each)):
            recorder.add(LoggerObserver(logger, episode_id=episode_id))
            observed.append(logger)


def add_langfuse(recorder: Recorder, client: Any, *, session_id: str | None) -> LangfuseObserver | None:
    """Add an observer for a Langfuse client, unless the recorder has one for it.

    Args:
        recorder: The recorder.
        client: The client; `None` is ignored.
        session_id: The episode's id; `None` creates one.

    Returns:
        The observer, which the caller has to close; `None` if none was added.
    """
    observed = (each for each in recorder.observers if isinstance(each, LangfuseObserver) and not each.closed)
    if client is None or any(each.client is client for each in observed):
        return None
    observer = LangfuseObserver(client, session_id=session_id)
    recorder.add(observer)
    return observer


def _targets(logger: Any) -> Iterator[Any]:
    """Yield the logger, and the loggers that it propagates its records to."""
    yield logger
    while isinstance(logger, logging.Logger) and logger.propagate and logger.parent is not None:
        logger = logger.parent
        yield logger


def _depth(logger: Any) -> int:
    return sum(1 for _ in _targets(logger))
