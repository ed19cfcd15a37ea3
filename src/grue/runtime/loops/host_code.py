"""Distinguish exceptions that the host's callbacks raise from exceptions of grue's own code."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import anyio


class HostCodeFailed(Exception):  # noqa: N818 - named as the event; it never reaches a caller
    """Wraps a callback's exception, so that, say, its `TimeoutError` is not taken for one of grue's own."""

    def __init__(self, error: BaseException, whose: str = "a callback of the host") -> None:
        super().__init__(in_words(error))
        self.error = error
        blame(error, whose)


@contextlib.contextmanager
def host_code(whose: str = "a callback of the host") -> Iterator[None]:
    """In this block, an exception of the host's code becomes `HostCodeFailed`, unless it ends the task."""
    try:
        yield
    except BaseException as error:
        if ends_the_task(error):
            raise
        raise HostCodeFailed(error, whose) from error


def blame(error: BaseException, whose: str) -> None:
    """Mark an exception with the name of the code that raised it, unless it is marked or `whose` is empty."""
    if whose and not raised_by(error):
        # A class of the host may refuse new attributes, for example because of `__slots__`.
        with contextlib.suppress(AttributeError, TypeError):
            error._raised_by = whose  # type: ignore[attr-defined]  # noqa: SLF001 - a mark of ours


@contextlib.contextmanager
def calling(called: object, what: str) -> Iterator[None]:
    """If the block raises, mark the error with `what` and the name of `called`, unless `called` is grue's."""
    try:
        yield
    except BaseException as error:
        if not str(getattr(called, "__module__", "")).startswith("grue."):
            blame(error, f"{what} {getattr(called, '__qualname__', type(called).__qualname__)}")
        raise


def raised_by(error: BaseException) -> str:
    """Return whose code has raised an exception, as `blame` has recorded it; empty: nothing was recorded."""
    whose = getattr(error, "_raised_by", "")
    if not whose and isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        # Python raises a RuntimeError if a StopIteration leaves a coroutine.
        whose = getattr(error.__cause__, "_raised_by", "")
    return whose if isinstance(whose, str) else ""


def ends_the_task(error: BaseException) -> bool:
    """Return whether `error` must end the current task: the task was cancelled, or its coroutine closed.

    A `CancelledError` of the host's own, such as of a task that it awaits, must not end our task silently.
    """
    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        return False
    task = current_task()
    if task is None:
        return True
    if isinstance(error, GeneratorExit):
        return False
    return task.cancelling() > 0 or anyio.get_current_task().has_pending_cancellation()


def current_task() -> asyncio.Task[Any] | None:
    """Return the asyncio task that runs in this thread, or `None`."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return None


def single(error: BaseException) -> BaseException:
    """Unwrap `HostCodeFailed`, groups, and the `RuntimeError` that Python makes of a host's `StopIteration`.

    A group of several `Exception`s is returned as it is. Any other group is replaced by a `KeyboardInterrupt`
    or `SystemExit` in it, or, if it has none, by its first member.
    """
    while True:
        whose = raised_by(error)
        match error:
            case HostCodeFailed():
                error = error.error
            case RuntimeError(__cause__=StopIteration() as stopped) if raised_by(stopped):
                error = stopped
            case BaseExceptionGroup():
                leaving = error.subgroup((KeyboardInterrupt, SystemExit)) or error
                if len(leaving.exceptions) > 1 and isinstance(leaving, Exception):
                    return error
                error = leaving.exceptions[0]
                blame(error, whose)
            case _:
                return error


def in_words(error: BaseException) -> str:
    """Return an exception's class and text; without the text if its `__str__` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the class may be the host's
        return type(error).__name__
