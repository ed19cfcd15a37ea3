"""Questions wait in the turn's event loop, and answers come from another thread."""

from typing import Any

import anyio
import anyio.to_thread
import pytest
from promises import cancelled_when

from grue.cli.chat.talk import Question
from grue.messages import ServerName
from grue.policies import ApprovalQuestion
from grue.tool_sessions.server_requests import Declined, ElicitationRequest

pytestmark = pytest.mark.anyio

CALL = ApprovalQuestion(call_id="1", name="a.b", arguments={}, arguments_digest="x", definition_digest="y")
REQUEST = ElicitationRequest("Who are you?", None, ServerName("crm"))


async def test_a_question_is_answered_by_another_thread() -> None:
    async with anyio.create_task_group() as group:

        def report(question: Question) -> None:
            answer = [CALL.approve()] if question.asked == (CALL,) else {"name": "Ada"}
            group.start_soon(anyio.to_thread.run_sync, question.answer, answer)

        with anyio.fail_after(60):
            assert await Question((CALL,)).put(report) == [CALL.approve()]
            assert await Question(REQUEST).put(report) == {"name": "Ada"}


async def test_each_question_gets_its_own_answer() -> None:
    asked: list[Any] = []
    answers: dict[str, Any] = {}

    async def ask(name: str) -> None:
        question = Question(ElicitationRequest(name, None, ServerName("crm")))
        answers[name] = await question.put(asked.append)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, "first")
            group.start_soon(ask, "second")
            await anyio.wait_all_tasks_blocked()
            for question in reversed(asked):
                question.answer(Declined(question.asked.message))
    assert answers == {"first": Declined("first"), "second": Declined("second")}


async def test_an_answer_after_the_turn_was_cancelled_is_dropped() -> None:
    asked: list[Question] = []
    await cancelled_when(lambda: asked, lambda: Question(REQUEST).put(asked.append))
    asked[0].answer({})
