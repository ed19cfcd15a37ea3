"""A task is followed to its end, whatever its server does: the rows of the module's table."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from case_tables import each_case
from turns import failure

from grue.messages import JsonObject, ToolTask
from grue.protocol.tools.server_tasks import TaskForm
from grue.testing.actor_harness import run_in_virtual_time
from grue.tool_sessions.failures import ServerFailed, ToolRefusedError
from grue.transports.mcp.session_parts import LOST, TaskOfCall

TASK = ToolTask(task_id="t1", poll_s=0.5)
FOUND = {"content": [{"type": "text", "text": "found"}]}
QUESTION = {"who": {"method": "elicitation/create", "params": {"message": "Who?"}}}
WORKING = {"status": "working", "pollIntervalMs": 2000, "pollInterval": 2000}
BROKEN = ToolRefusedError("the store is down", code=-32603)
UNKNOWN = ToolRefusedError("no such task", code=-32602)
HANGS = "hangs"


class Server:
    """Answers `tasks/get` from a script, and notes when it was asked what."""

    def __init__(self, *answers: Any, form: TaskForm = "extension", others: Any = None) -> None:
        self._answers = list(answers)
        self._others = others or {}
        self.asked: list[tuple[float, str]] = []
        self.responded: list[JsonObject] = []
        self.progress: list[str] = []
        self.task = TaskOfCall(
            TASK, form, ask=self._ask, respond=self._respond, progress=self.progress.append
        )

    @property
    def methods(self) -> list[str]:
        return [method.removeprefix("tasks/") for _, method in self.asked]

    async def _ask(self, method: str, params: JsonObject) -> JsonObject:
        assert params["taskId"] == "t1"
        self.asked.append((anyio.current_time(), method))
        answer = self._answers.pop(0) if method == "tasks/get" else self._others.get(method, {})
        if answer == HANGS:
            await anyio.sleep_forever()
        if isinstance(answer, Exception):
            raise answer
        if method == "tasks/update":
            self.responded.append(params)
        result: JsonObject = answer
        return result

    async def _respond(self, questions: JsonObject) -> JsonObject:
        return {name: {"action": "decline"} for name in questions}


def ended(server: Server, **how: Any) -> Any:
    """The task's result, or what it raises."""

    async def follow() -> Any:
        try:
            return await server.task.result(**how)
        except (ToolRefusedError, ServerFailed) as error:
            return error

    return run_in_virtual_time(follow)


def refusal(server: Server) -> str:
    error = ended(server)
    assert isinstance(error, ToolRefusedError)
    return str(error)


def test_the_server_is_asked_as_often_as_it_says() -> None:
    server = Server(WORKING, WORKING, {"status": "completed", "result": FOUND})
    assert ended(server) == FOUND
    assert [time for time, _ in server.asked] == pytest.approx([0.5, 2.5, 4.5])
    assert server.methods == ["get"] * 3


def test_a_task_of_an_earlier_process_is_asked_for_at_once() -> None:
    server = Server({"status": "completed", "result": FOUND})
    assert ended(server, at_once=True) == FOUND
    assert server.asked == [(0.0, "tasks/get")]


@each_case("status", ["completed", "input_required"])
def test_the_experimental_form_collects_the_result(status: str) -> None:
    server = Server(WORKING, {"status": status}, form="experimental", others={"tasks/result": FOUND})
    assert ended(server) == FOUND
    assert server.methods == ["get", "get", "result"]


def test_what_the_server_wants_to_know_is_answered_once() -> None:
    asked = {"status": "input_required", "inputRequests": QUESTION, "pollIntervalMs": 1000}
    server = Server(asked, asked, {"status": "completed", "result": FOUND})
    assert ended(server) == FOUND
    assert server.methods == ["get", "update", "get", "get"]
    assert [each["inputResponses"] for each in server.responded] == [{"who": {"action": "decline"}}]


def test_each_change_of_what_it_says_is_progress() -> None:
    said = ({**WORKING, "statusMessage": text} for text in ("one", "one", "two", ""))
    server = Server(*said, {"status": "completed", "result": FOUND})
    assert ended(server) == FOUND
    assert server.progress == ["one", "two"]


@each_case(
    "answer, form, reason",
    [
        ({"status": "failed", "error": {"code": -1, "message": "no disk"}}, "extension", "no disk"),
        ({"status": "failed"}, "experimental", "the store is down"),
        ({"status": "cancelled"}, "extension", "the server has cancelled its task"),
        (UNKNOWN, "extension", f"{LOST}: no such task"),
    ],
)
def test_a_task_that_has_ended_badly_refuses_the_call(answer: Any, form: Any, reason: str) -> None:
    server = Server(answer, form=form, others={"tasks/result": BROKEN})
    assert refusal(server) == reason
    assert "cancel" not in server.methods


def test_a_question_that_is_refused_is_put_again_and_then_given_up() -> None:
    server = Server(BROKEN, {"status": "odd"}, {"status": "completed", "result": FOUND})
    assert ended(server) == FOUND
    server = Server(BROKEN, BROKEN, WORKING, BROKEN, {"status": "odd"}, BROKEN)
    assert refusal(server).endswith("its server did not say how its task is doing: the store is down")
    assert server.methods == ["get"] * 6 + ["cancel"]


def test_what_cannot_be_answered_cancels_the_task() -> None:
    asked = {"status": "input_required", "inputRequests": QUESTION}
    server = Server(asked, others={"tasks/update": BROKEN})
    assert refusal(server) == "the store is down"
    assert server.methods == ["get", "update", "cancel"]


def test_a_lost_connection_ends_the_call_and_nothing_is_sent() -> None:
    server = Server(WORKING, ServerFailed(failure(phase="call")))
    assert isinstance(ended(server), ServerFailed)
    assert server.methods == ["get", "get"]


@each_case(
    "answers, others, asked",
    [
        ((), {}, []),
        ((HANGS,), {}, ["get"]),
        ((WORKING, WORKING, WORKING), {}, ["get", "get", "get"]),
        (
            ({"status": "input_required", "inputRequests": QUESTION},),
            {"tasks/update": HANGS},
            ["get", "update"],
        ),
        ((HANGS,), {"tasks/cancel": HANGS}, ["get"]),
        ((HANGS,), {"tasks/cancel": UNKNOWN}, ["get"]),
    ],
)
def test_a_time_limit_cancels_the_task_in_every_state(answers: Any, others: Any, asked: list[str]) -> None:
    server = Server(*answers, others=others)
    limit_s = 0.1 if not answers else 5.0
    assert out_of_time(server, limit_s)
    assert server.methods == [*asked, "cancel"]


def test_a_time_limit_while_the_result_is_collected_cancels_the_task() -> None:
    server = Server({"status": "completed"}, form="experimental", others={"tasks/result": HANGS})
    assert out_of_time(server, 5.0)
    assert server.methods == ["get", "result", "cancel"]


def out_of_time(server: Server, limit_s: float) -> bool:
    """Whether the limit ended it, and a server that takes no note of that cost one second more at most."""

    async def follow() -> bool:
        with anyio.move_on_after(limit_s) as scope:
            await server.task.result()
        assert limit_s <= anyio.current_time() <= limit_s + 1.0
        return scope.cancelled_caught

    run: Callable[..., bool] = run_in_virtual_time
    return run(follow)
