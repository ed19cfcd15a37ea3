"""Text of a reply that may still be dropped is held back; imports wait for the request."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from grue.engine.turn_actors import EarlyRequest
from grue.messages import TextDelta, ToolsVerified

pytestmark = pytest.mark.anyio


def unexpected(actor: str, error: BaseException) -> None:
    raise AssertionError(actor) from error


class Shown:
    """An early request, and what the host has seen of it."""

    def __init__(self, *, presuming: bool = True) -> None:
        self.texts: list[str] = []
        self.agent: Any = SimpleNamespace(is_presuming=presuming, may_presume=False)
        self.request = EarlyRequest(lambda delta: self.texts.append(delta.text))
        self.request.agent = self.agent
        self.noted: list[Any] = []
        self.note = self.request.releasing(self._note, unexpected)

    def _note(self, body: Any, *, sender: str, cause: int | None = None) -> Any:
        del sender, cause
        self.noted.append(body)
        return body

    def say(self, text: str, request: int = 1) -> None:
        self.request.show(TextDelta(request=request, text=text))


def test_text_is_held_until_the_tools_are_verified_and_then_shown_at_once() -> None:
    shown = Shown()
    shown.say("go ")
    shown.agent.is_presuming = False
    shown.say("north")
    assert shown.texts == [], "the order stays"
    shown.note(ToolsVerified(request=1), sender="agent")
    assert shown.texts == ["go ", "north"]
    shown.say(".")
    assert shown.texts[-1] == "."


def test_text_of_a_dropped_reply_is_never_shown() -> None:
    shown = Shown()
    shown.say("wrong")
    shown.agent.is_presuming = False
    shown.say("right", request=2)
    assert shown.texts == ["right"]


def test_a_host_that_reads_no_text_gets_none() -> None:
    request = EarlyRequest(None)
    request.show(TextDelta(request=1, text="north"))
    note = request.releasing(lambda body, *, sender, cause=None: body, unexpected)
    note(ToolsVerified(request=1), sender="agent")


@pytest.mark.parametrize("how", ["sent", "declined"])
async def test_imports_wait_for_the_request_or_for_its_refusal(how: str) -> None:
    shown = Shown()
    shown.request.stepped()
    waited: list[str] = []

    async def wait() -> None:
        await shown.request.wait_sent()
        waited.append(how)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.lowlevel.checkpoint()
        assert waited == []
        if how == "sent":
            shown.request.sent()
        else:
            shown.agent.is_presuming = False
            shown.request.stepped()
    assert waited == [how]
