"""What the host's own code raises: told apart from what our own code raises for reasons of its own."""

import asyncio
import contextlib
from collections.abc import Iterator

import anyio


class HostCodeFailed(Exception):  # noqa: N818 - named as the event; it never reaches a caller
    """Carries what a callback raised past code that handles the same exceptions as its own.

    A callback that raises TimeoutError, say, is called amid an exchange in which that means a slow model; one
    that raises KeyboardInterrupt would stop the whole event loop on the spot. The supervisor takes it out.

    Attributes:
        error: What was raised.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def host_code() -> Iterator[None]:
    """Run a callback of the host's; what it raises leaves as `HostCodeFailed`. A cancellation does not."""
    try:
        yield
    except BaseException as error:
        if ends_the_task(error):
            raise
        raise HostCodeFailed(error) from error


def ends_the_task(error: BaseException) -> bool:
    """Say whether a task has to end with this: it was cancelled, or its coroutine is being closed.

    The host's code may raise the same where nothing was cancelled, for instance because it waited for a task
    of its own that was. Taken for a cancellation, it would end our task without a word to anybody.
    """
    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs
        return True
    if task is None:
        return True
    if isinstance(error, GeneratorExit):
        return False
    return task.cancelling() > 0 or anyio.get_current_task().has_pending_cancellation()


def single(error: BaseException) -> BaseException:
    """Return what was raised without what it is wrapped in.

    Of an exception group that is its only member, or the one that is meant to end the program.
    """
    while True:
        match error:
            case HostCodeFailed():
                error = error.error
            case BaseExceptionGroup():
                leaving = error.subgroup((KeyboardInterrupt, SystemExit)) or error
                if len(leaving.exceptions) > 1 and isinstance(leaving, Exception):
                    return error
                error = leaving.exceptions[0]
            case _:
                return error
