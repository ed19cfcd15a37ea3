"""Read a task: a tool call that its server has taken on and answers later.

MCP has tasks in two forms.

|                   | `experimental` (2025-11-25)          | `extension` (2026-07-28)                   |
|-------------------|--------------------------------------|--------------------------------------------|
| who makes a task  | the client, with `task` in the call  | the server                                 |
| where it is named | `task` in the result                 | the result itself, its `resultType`: `task`|
| poll interval, ms | `pollInterval`                       | `pollIntervalMs`                           |
| lifetime, ms      | `ttl`                                | `ttlMs`                                    |
| result            | `tasks/result`, which waits for it   | in the answer to `tasks/get`               |
| questions         | requests while `tasks/result` waits  | in `tasks/get`, answered by `tasks/update` |

Everything that is read here is untrusted.
"""

from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from grue import messages as m
from grue.protocol.json_text import json_object
from grue.runtime.safe_text import well_formed

TaskForm: TypeAlias = Literal["experimental", "extension"]

POLL_S = 1.0  # seconds between two polls of a task's state, if its server names no interval

_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.1, 3600.0
_MOST_MS = 10 * 365 * 86_400_000
_ID_CHARS = 1000
_MESSAGE_CHARS = 100_000
UNKNOWN_TASK = frozenset((-32602, -32601, -32002))  # invalid parameters, no such method, not found
MAX_POLL_ERRORS = 3  # refused or unreadable polls of a task in a row after which the call fails


class WaitFor(Struct, frozen=True):
    """The task is not done yet: ask for its state again after `poll_s`."""

    poll_s: float


class AnswerQuestions(Struct, frozen=True):
    """Answer the server's questions by `tasks/update`, and ask for the task again after `poll_s`."""

    questions: m.JsonObject
    poll_s: float


class CollectResult(Struct, frozen=True):
    """Request the task's result by `tasks/result`. The server answers when the task has ended."""


class TaskFinished(Struct, frozen=True):
    """The task has ended with a result."""

    result: m.JsonObject


class TaskFailed(Struct, frozen=True):
    """The task has ended without a result. `code`: the code of the server's error; 0: it sent none."""

    reason: str
    code: int = 0


TaskMove: TypeAlias = WaitFor | AnswerQuestions | CollectResult | TaskFinished | TaskFailed


def created_task(answer: m.JsonObject, form: TaskForm | None) -> m.ToolTask | None:
    """Return the task in an answer to `tools/call`, if any; `ValueError` if the task cannot be used."""
    if form == "extension" and answer.get("resultType") == "task":
        return _handle(answer)
    task = answer.get("task") if form == "experimental" else None
    return _handle(task) if isinstance(task, dict) and "content" not in answer else None


def next_move(answer: m.JsonObject, form: TaskForm, answered: Collection[str] = ()) -> TaskMove:
    """Return the next step after an answer to `tasks/get`; `ValueError` if the answer cannot be used."""
    poll_s = _poll_s(answer)
    match answer.get("status"):
        case "working":
            return WaitFor(poll_s)
        case "input_required" | "completed" | "failed" if form == "experimental":
            return CollectResult()
        case "input_required":
            asked = answer.get("inputRequests")
            left = {name: each for name, each in _object(asked).items() if name not in answered}
            return AnswerQuestions(left, poll_s) if left else WaitFor(poll_s)
        case "completed":
            return TaskFinished(_object(answer.get("result")))
        case "failed":
            error = _object(answer.get("error"))
            code = error.get("code")
            reason = _text(error.get("message")) or "no reason given"
            return TaskFailed(reason, code if type(code) is int else 0)
        case "cancelled":
            said = status_message(answer)
            return TaskFailed(f"the server has cancelled its task{': ' if said else ''}{said}")
        case status:
            raise ValueError(f"the status of its task is {_shown(status)}")


def status_message(answer: m.JsonObject) -> str:
    """Return the server's text about a task's state."""
    return _text(answer.get("statusMessage"))


def _handle(task: Mapping[str, object]) -> m.ToolTask:
    task_id = task.get("taskId")
    if not isinstance(task_id, str) or not 0 < len(task_id) <= _ID_CHARS or well_formed(task_id) != task_id:
        raise ValueError("its task has no usable taskId")
    return m.ToolTask(task_id=task_id, poll_s=_poll_s(task), ttl_s=seconds_in(task, "ttlMs", "ttl"))


def _poll_s(task: Mapping[str, object]) -> float:
    stated = seconds_in(task, "pollIntervalMs", "pollInterval")
    return POLL_S if stated is None else min(max(stated, _SHORTEST_POLL_S), _LONGEST_POLL_S)


def seconds_in(answer: Mapping[str, object], *names: str) -> float | None:
    """Return a time in seconds, from the first of the members `names` (in ms) that is usable; else `None`."""
    for name in names:
        stated = answer.get(name)
        if isinstance(stated, int | float) and not isinstance(stated, bool) and 0 <= stated < float("inf"):
            return min(stated, _MOST_MS) / 1000
    return None


def _object(value: object) -> m.JsonObject:
    if not isinstance(value, dict):
        raise ValueError(f"its answer about the task has {_shown(value)} where an object belongs")
    return json_object(value)


def _text(value: object) -> str:
    return well_formed(value[:_MESSAGE_CHARS]) if isinstance(value, str) else ""


def _shown(value: object) -> str:
    return f"'{well_formed(value[:100])}'" if isinstance(value, str) else type(value).__name__
