"""Tasks that run beside a block of code and are cancelled when it ends."""

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc


def leaves_no_time(exc_type: type[BaseException] | None) -> bool:
    """Return whether this exception is tearing down the event loop, so that nothing can be awaited."""
    return exc_type is not None and issubclass(exc_type, KeyboardInterrupt | SystemExit | GeneratorExit)


class BackgroundTasks:
    """Tasks that are cancelled when a block ends.

    Unlike a task group, it lets the block's own exception pass unchanged instead of wrapping it in an
    ExceptionGroup.
    """

    def __init__(self) -> None:
        self._group: anyio.abc.TaskGroup
        self._any = False

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if not leaves_no_time(exc_type):
            self._group.cancel_scope.shield = True
            if self._any:
                self._group.cancel_scope.cancel()
            await self._group.__aexit__(None, None, None)

    def start(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a task until it returns or the block ends. The task must not raise."""
        self._any = True
        self._group.start_soon(task)
