"""Turns whose user text tells the scripted model what to do, for tests that act while a turn runs."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from fault_turns import LIFETIMES, Mode

from grue import LlmSettings, ProcessLimits, RetryPolicy, Runner, TurnRequest
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

HELD_AT_MOST_S = 20.0
QUICK = ProcessLimits(exit_grace_s=0.2, term_grace_s=0.2)


class WordedModel:
    """A scripted model. To `call TOOL` it replies with a call of this tool, and then with `done`.

    To `wait` it replies `done` when the test opens `gate`, and to any other text at once.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.server = ScriptedLlmServer(self._say)

    def _say(self, request: LlmRequest) -> LlmReply:
        verb, _, tool = request.messages[1]["content"].partition(" ")
        if verb == "wait":
            self.gate.wait(HELD_AT_MOST_S)
        if verb == "call" and request.messages[-1]["role"] != "tool":
            return tool_calls_reply((tool, {"text": "x"} if tool.endswith(".echo") else {}))
        return text_reply("done")

    def runner(self, mode: Mode, **more: Any) -> Runner:
        retry = RetryPolicy(max_retries=0)
        llm = LlmSettings(base_url=self.server.base_url, model="m", retry=retry)
        return Runner(llm=llm, **{"process_limits": QUICK, **LIFETIMES[mode], **more})


@contextlib.contextmanager
def worded_model() -> Iterator[WordedModel]:
    """Yield a running `WordedModel`. Then open its gate, and assert that nothing of the turns is left."""
    model = WordedModel()
    with assert_nothing_left(), model.server:
        try:
            yield model
        finally:
            model.gate.set()


def ask(words: str = "u", **more: Any) -> TurnRequest[Any]:
    return TurnRequest[Any](system="s", user=words, **more)
