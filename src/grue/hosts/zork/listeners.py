"""Have a logger or a Langfuse client told of what a recorder records, once each.

An agent, its manager and its orchestrator may each be given a logger and a client, and often the same ones.
All of them share the agent's recorder, so what is told already is found there.
"""

import logging
from collections.abc import Iterator
from typing import Any

from grue.observers.langfuse import LangfuseObserver
from grue.observers.python_log import LoggerObserver
from grue.runtime.trace import Recorder


def tell_loggers(recorder: Recorder, *loggers: Any, episode_id: str) -> None:
    """Tell each logger of what is recorded from now on, unless it hears of it already.

    A logger hears of what is logged to itself, and of what a logger below it passes on.

    Args:
        recorder: What records.
        loggers: Loggers, or objects with `info`, `warning` and `error`; `None` is passed over.
        episode_id: Carried by every record.
    """
    told = [each.logger for each in recorder.observers if isinstance(each, LoggerObserver)]
    # The lowest first: what is logged to it is passed on to those above.
    for logger in sorted(filter(None, loggers), key=_depth, reverse=True):
        if not any(logger is heard for each in told for heard in _hearing(each)):
            recorder.add(LoggerObserver(logger, episode_id=episode_id))
            told.append(logger)


def tell_langfuse(recorder: Recorder, client: Any, *, session_id: str | None) -> LangfuseObserver | None:
    """Tell a Langfuse client of what is recorded from now on, unless it is told already.

    Args:
        recorder: What records.
        client: The client; `None` is passed over.
        session_id: The episode's id; `None`: a new one.

    Returns:
        The observer, for whoever has to close it; `None` if none was added.
    """
    told = (each for each in recorder.observers if isinstance(each, LangfuseObserver) and not each.closed)
    if client is None or any(each.client is client for each in told):
        return None
    observer = LangfuseObserver(client, session_id=session_id)
    recorder.add(observer)
    return observer


def _hearing(logger: Any) -> Iterator[Any]:
    """Yield the logger, and those that it passes its records on to."""
    yield logger
    while isinstance(logger, logging.Logger) and logger.propagate and logger.parent is not None:
        logger = logger.parent
        yield logger


def _depth(logger: Any) -> int:
    return sum(1 for _ in _hearing(logger))
