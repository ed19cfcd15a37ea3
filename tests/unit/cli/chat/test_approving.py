"""Questions wait in the turn's event loop, and decisions come from another thread."""

import anyio
import anyio.to_thread
import pytest

from grue.approvals import ApprovalQuestion
from grue.cli.chat.approving import Approver

pytestmark = pytest.mark.anyio

QUESTION = ApprovalQuestion(
    call_id="1", name="a.b", arguments={}, arguments_digest="x", definition_digest="y"
)
YES, NO = [QUESTION.approve()], [QUESTION.deny()]


async def test_decisions_reach_the_turn_whoever_comes_first() -> None:
    approver = Approver()
    approver.begin()
    approver.decide(YES)
    assert await approver.ask((QUESTION,)) == YES
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, approver.decide, NO)
        with anyio.fail_after(10):
            assert await approver.ask((QUESTION,)) == NO


async def test_a_decision_that_comes_too_late_is_not_taken_for_the_next_question() -> None:
    approver = Approver()
    approver.begin()
    with anyio.move_on_after(0.01):
        await approver.ask((QUESTION,))
    approver.decide(YES)
    approver.begin()
    with anyio.move_on_after(0.01) as scope:
        await approver.ask((QUESTION,))
    assert scope.cancelled_caught
