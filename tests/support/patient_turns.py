"""Turns that wait for the model until the test lets it answer, for tests of running turns."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from fault_turns import LIFETIMES, Mode

from grue import (
    LlmSettings,
    ProcessLimits,
    RetryPolicy,
    Runner,
    StdioServer,
    TurnLimits,
    TurnRequest,
)
from grue.testing import faulty_server
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

ASK = TurnRequest[str](system="Answer.", user="What is the plan?")
DEADLINE_S = 60.0


class PatientModel:
    """A scripted model: it calls `faulty.echo` once, then says `done`. It waits while `gate` is cleared."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.server = ScriptedLlmServer(self._say)

    def _say(self, request: LlmRequest) -> LlmReply:
        self.gate.wait(DEADLINE_S)
        if request.messages[-1]["role"] == "tool" or not request.tool_names:
            return text_reply(f"done: {request.messages[1]['content']}")
        return tool_calls_reply(("faulty.echo", {"text": "hello"}))

    def runner(self, mode: Mode, *flags: str, servers: bool = True, **more: Any) -> Runner:
        command, *args = faulty_server.argv(*flags)
        faulty = StdioServer(name="faulty", command=command, args=tuple(args))
        return Runner(
            llm=LlmSettings(base_url=self.server.base_url, model="m", retry=RetryPolicy(max_retries=0)),
            servers={"faulty": faulty} if servers else {},
            limits=TurnLimits(teardown_s=1.0),
            process_limits=ProcessLimits(exit_grace_s=0.2, term_grace_s=0.2),
            **LIFETIMES[mode],
            **more,
        )


@contextlib.contextmanager
def patient_model() -> Iterator[PatientModel]:
    """Yield a running `PatientModel`, and open its gate at the end."""
    model = PatientModel()
    with model.server:
        try:
            yield model
        finally:
            model.gate.set()


def wait_until(true: Callable[[], object]) -> None:
    """Wait until `true()` is true; fail after `DEADLINE_S`."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.002)
