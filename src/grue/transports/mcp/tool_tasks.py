"""Follow a task to its end: a tool call that its server has taken on and answers later.

What its answers mean is in `protocol/tools/server_tasks.py`, with the two forms that MCP has. The states and
what can happen in each:

| state             | what happens                             | then                                      |
|-------------------|------------------------------------------|-------------------------------------------|
| being created     | the call is answered at once             | that is the result                        |
|                   | time limit, cancellation                 | `notifications/cancelled`: no handle yet  |
| working           | asked every `poll_s`; its state changes  | a `progress` notice                       |
|                   | a question is refused, or not usable     | asked again, `MAX_POLL_ERRORS` times      |
| input_required    | the host answers, or declines            | working                                   |
|                   | the server wants what is not offered     | `tasks/cancel`; the call is refused       |
| completed         |                                          | the result                                |
| failed, cancelled |                                          | the call is refused, with the reason      |
| unknown (expired, | the server answers "no such task"        | the call is refused, with `LOST`          |
| the server died)  |                                          |                                           |
| any after created | time limit, cancellation                 | `tasks/cancel`, which gets `_CANCEL_S`    |
|                   | the connection breaks, the server dies   | `ServerFailed`, as in any call            |
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio

from grue import messages as m
from grue.protocol.tools.results import INTERRUPTED
from grue.protocol.tools.server_tasks import (
    MAX_POLL_ERRORS,
    AnswerQuestions,
    CollectResult,
    TaskFailed,
    TaskFinished,
    TaskForm,
    TaskMove,
    WaitFor,
    is_unknown,
    next_move,
    status_message,
)
from grue.runtime.loops.host_code import HostCodeFailed
from grue.tool_sessions.failures import ServerFailed, ToolRefusedError, ToolTimedOutError

_CANCEL_S = 1.0
_INTERNAL_ERROR = -32603
LOST = f"{INTERRUPTED}: its server no longer knows the task"


class Asks(Protocol):
    """Sends a request to the server; raises `ToolRefusedError` and `ServerFailed`."""

    def __call__(self, method: str, params: m.JsonObject) -> Awaitable[m.JsonObject]:
        """Return the raw result."""
        ...


class TaskOfCall:
    """One task, which is followed to its end.

    Args:
        task: Its handle.
        form: Of the session's protocol revision.
        ask: Sends the requests about it.
        respond: Returns the answers to the server's questions, by their names.
        progress: Receives what the server says about the task's state, whenever that changes.
    """

    def __init__(
        self,
        task: m.ToolTask,
        form: TaskForm,
        *,
        ask: Asks,
        respond: Callable[[m.JsonObject], Awaitable[m.JsonObject]],
        progress: Callable[[str], None],
    ) -> None:
        self._task = task
        self._form = form
        self._ask = ask
        self._respond = respond
        self._progress = progress
        self._said = ""
        self._answered: set[str] = set()
        self._refused = 0

    async def result(self, *, at_once: bool = False) -> m.JsonObject:
        """Wait for the result and return it, as `tools/call` would have returned it.

        If this is cancelled, or the task is given up, a request tells the server to cancel the task. The
        server gets a second to take note of that.

        Args:
            at_once: Ask the first time without waiting: the task was created some time ago.

        Raises:
            ToolRefusedError: The task has failed or was cancelled by its server, or there is no result.
            ServerFailed: The server died or the connection broke.
        """
        try:
            ended = await self._end(0.0 if at_once else self._task.poll_s)
        except (anyio.get_cancelled_exc_class(), ToolRefusedError, HostCodeFailed):
            await self._cancel()
            raise
        if isinstance(ended, TaskFailed):
            raise ToolRefusedError(ended.reason, code=ended.code)
        return ended.result

    async def _end(self, wait_s: float) -> TaskFinished | TaskFailed:
        while True:
            await anyio.sleep(wait_s)
            match await self._state():
                case WaitFor(poll_s):
                    wait_s = poll_s
                case AnswerQuestions(questions, poll_s):
                    await self._answer(questions)
                    wait_s = poll_s
                case CollectResult():
                    return await self._collected()
                case TaskFinished() | TaskFailed() as ended:
                    return ended

    async def _state(self) -> TaskMove:
        """Ask how the task is doing. A question that fails is put again at the next time, a few times."""
        try:
            answer = await self._ask("tasks/get", {"taskId": self._task.task_id})
            move = next_move(answer, self._form, self._answered)
        except ToolRefusedError as refused:
            if is_unknown(refused.code):
                return TaskFailed(f"{LOST}: {refused}", refused.code)
            return self._after_refusal(str(refused), refused.code)
        except ValueError as error:
            return self._after_refusal(str(error), _INTERNAL_ERROR)
        self._refused = 0
        self._tell(status_message(answer))
        return move

    def _after_refusal(self, reason: str, code: int) -> TaskMove:
        self._refused += 1
        if self._refused < MAX_POLL_ERRORS:
            return WaitFor(self._task.poll_s)
        raise ToolRefusedError(
            f"{INTERRUPTED}: its server did not say how its task is doing: {reason}", code=code
        )

    async def _answer(self, questions: m.JsonObject) -> None:
        responses = await self._respond(questions)
        await self._ask("tasks/update", {"taskId": self._task.task_id, "inputResponses": responses})
        self._answered.update(questions)

    async def _collected(self) -> TaskFinished | TaskFailed:
        """Collect the result; a refusal is that of the call, whose task has ended with it."""
        try:
            return TaskFinished(await self._ask("tasks/result", {"taskId": self._task.task_id}))
        except ToolRefusedError as refused:
            return TaskFailed(str(refused), refused.code)

    def _tell(self, said: str) -> None:
        if said and said != self._said:
            self._progress(said)
        self._said = said

    async def _cancel(self) -> None:
        """Tell the server to cancel the task, even while this is being cancelled."""
        with anyio.move_on_after(_CANCEL_S, shield=True):
            # The call has ended either way, and says why.
            with contextlib.suppress(ToolRefusedError, ToolTimedOutError, ServerFailed):
                await self._ask("tasks/cancel", {"taskId": self._task.task_id})
