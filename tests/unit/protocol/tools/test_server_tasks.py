"""What a server's answers about a task mean, in both forms."""

from typing import Any

import pytest
from case_tables import each_case

from grue.messages import ToolTask
from grue.protocol.tools.server_tasks import (
    POLL_S,
    UNKNOWN_TASK,
    AnswerQuestions,
    CollectResult,
    TaskFailed,
    TaskFinished,
    TaskMove,
    WaitFor,
    created_task,
    next_move,
    status_message,
)

RESULT = {"content": [{"type": "text", "text": "found"}]}
HANDLE = {"taskId": "t1", "status": "working", "pollInterval": 250, "ttl": 60_000}
EXTENDED = {"resultType": "task", "taskId": "t1", "pollIntervalMs": 250, "ttlMs": None}
QUESTIONS = {"who": {"method": "elicitation/create"}, "why": {"method": "elicitation/create"}}


def test_a_handle_is_read_in_both_forms() -> None:
    task = ToolTask(task_id="t1", poll_s=0.25, ttl_s=60.0)
    assert created_task({"task": HANDLE}, "experimental") == task
    assert created_task(EXTENDED, "extension") == ToolTask(task_id="t1", poll_s=0.25)
    ten_years = ToolTask(task_id="t1", poll_s=0.25, ttl_s=315_360_000.0)
    assert created_task({**EXTENDED, "ttlMs": 10**400}, "extension") == ten_years


@each_case(
    "answer, form",
    [
        (RESULT, "experimental"),
        ({**RESULT, "task": HANDLE}, "experimental"),
        ({"task": 7}, "experimental"),
        (EXTENDED, "experimental"),
        ({**RESULT, "resultType": "complete"}, "extension"),
        ({"task": HANDLE}, "extension"),
        ({"task": HANDLE}, None),
        (EXTENDED, None),
    ],
)
def test_anything_else_is_the_result_of_the_call(answer: dict[str, Any], form: Any) -> None:
    assert created_task(answer, form) is None


@each_case("task_id", ["", None, 7, "x" * 1001, "\ud800"])
def test_a_handle_without_a_usable_id_is_refused(task_id: object) -> None:
    with pytest.raises(ValueError, match="no usable taskId"):
        created_task({"task": {**HANDLE, "taskId": task_id}}, "experimental")


@each_case(
    "stated, poll_s",
    [
        (None, POLL_S),
        (250, 0.25),
        (0, 0.1),
        (1e12, 3600.0),
        (10**400, 3600.0),
        (-1, POLL_S),
        (True, POLL_S),
        (float("inf"), POLL_S),
        (float("nan"), POLL_S),
        ("250", POLL_S),
    ],
)
def test_the_interval_is_the_servers_within_bounds(stated: object, poll_s: float) -> None:
    assert next_move({"status": "working", "pollIntervalMs": stated}, "extension") == WaitFor(poll_s)
    assert next_move({"status": "working", "pollInterval": stated}, "experimental") == WaitFor(poll_s)


@each_case(
    "answer, form, move",
    [
        ({"status": "input_required"}, "experimental", CollectResult()),
        ({"status": "completed"}, "experimental", CollectResult()),
        ({"status": "failed"}, "experimental", CollectResult()),
        ({"status": "completed", "result": RESULT}, "extension", TaskFinished(RESULT)),
        (
            {"status": "failed", "error": {"code": -32000, "message": "no disk"}},
            "extension",
            TaskFailed("no disk", -32000),
        ),
        ({"status": "failed", "error": {"code": True}}, "extension", TaskFailed("no reason given")),
        ({"status": "cancelled"}, "extension", TaskFailed("the server has cancelled its task")),
        (
            {"status": "cancelled", "statusMessage": "too long"},
            "experimental",
            TaskFailed("the server has cancelled its task: too long"),
        ),
    ],
)
def test_each_status_has_its_move(answer: dict[str, Any], form: Any, move: TaskMove) -> None:
    assert next_move(answer, form) == move


def test_a_question_is_answered_once() -> None:
    asked = {"status": "input_required", "inputRequests": QUESTIONS}
    assert next_move(asked, "extension") == AnswerQuestions(QUESTIONS, POLL_S)
    assert next_move(asked, "extension", {"who"}) == AnswerQuestions({"why": QUESTIONS["why"]}, POLL_S)
    assert next_move(asked, "extension", {"who", "why"}) == WaitFor(POLL_S)


@each_case(
    "answer, fault",
    [
        ({}, "the status of its task is NoneType"),
        ({"status": "odd"}, "the status of its task is 'odd'"),
        ({"status": "completed"}, "has NoneType where an object belongs"),
        ({"status": "failed", "error": "x"}, "has 'x' where an object belongs"),
        ({"status": "input_required", "inputRequests": []}, "has list where an object belongs"),
    ],
)
def test_an_answer_that_says_nothing_usable_is_refused(answer: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        next_move(answer, "extension")


def test_what_is_said_about_a_task_is_text() -> None:
    assert status_message({"statusMessage": "half done"}) == "half done"
    assert status_message({"statusMessage": 7}) == ""


@each_case("code, unknown", [(-32602, True), (-32601, True), (-32002, True), (-32603, False), (0, False)])
def test_some_errors_mean_that_there_is_no_such_task(code: int, unknown: bool) -> None:
    assert (code in UNKNOWN_TASK) is unknown
