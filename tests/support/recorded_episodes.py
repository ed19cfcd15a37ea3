"""Record episodes of the real runtime, with a scripted model and fake servers, in a trace file."""

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import anyio

from grue import (
    AnswerSpec,
    FailurePolicy,
    MCPError,
    Recorder,
    Runner,
    TraceWriter,
    TurnLimits,
    TurnRequest,
)
from grue.messages import CompletionReceived, RequestCompletion, ToolCall, ToolSupportChecked, Usage
from grue.runtime.actor import Actor, Mailbox, Note
from grue.runtime.trace.recorder import Envelope
from grue.testing.actor_harness import run_in_virtual_time
from grue.testing.fake_tools import FakeToolServer

HANG = object()
CRASH = object()
Reply = Any
"""A text, `None` for nothing, names of tools to call (or pairs with arguments), `HANG` or `CRASH`."""


class ScriptedModel(Actor[Any]):
    """An LLM actor that answers each request with the next reply of its script."""

    def __init__(self, mailbox: Mailbox[Any], agent: Mailbox[Any], script: "deque[Reply]") -> None:
        super().__init__(mailbox)
        self._agent = agent
        self._script = script
        self._calls = 0

    async def receive(self, envelope: Envelope[Any]) -> None:
        if not isinstance(envelope.body, RequestCompletion):
            checked = ToolSupportChecked(model="m", endpoint="e", supported=True, by="name")
            await self._agent.send(checked, sender=self.name, cause=envelope.seq)
            return
        reply = self._script.popleft()
        if reply is CRASH:
            raise LookupError("nobody foresaw this")
        if reply is HANG:
            await anyio.sleep_forever()
        usage = Usage(input_tokens=10, output_tokens=2)
        number = envelope.body.request
        said = CompletionReceived(request=number, content=reply, usage=usage)
        if isinstance(reply, Sequence) and not isinstance(reply, str):
            calls = tuple(self._call(number, item) for item in reply)
            said = CompletionReceived(request=number, tool_calls=calls, usage=usage)
        await self._agent.send(said, sender=self.name, cause=envelope.seq)

    def _call(self, request: int, item: "str | tuple[str, str]") -> ToolCall:
        self._calls += 1
        name, arguments = (item, "{}") if isinstance(item, str) else item
        return ToolCall(call_id=f"r{request}c{self._calls}", name=name, arguments=arguments)


class RecordedEpisode:
    """Runs turns and records them in `path`.

    Args:
        path: The trace file.
        servers: Tool servers, by name.
        secrets: Values to redact, by name.
        settings: Further arguments of a `Runner`.
    """

    def __init__(
        self,
        path: Path,
        servers: Mapping[str, FakeToolServer] | None = None,
        *,
        secrets: Mapping[str, str] | None = None,
        policy: FailurePolicy | None = None,
        limits: TurnLimits | None = None,
    ) -> None:
        self.path = path
        self.recorder = Recorder(secrets=secrets)
        self._script: deque[Reply] = deque()
        self._writer = TraceWriter(path, episode="recorded")
        self.recorder.add(self._writer)
        self.runner = Runner(
            llm=self._model, servers=servers, policy=policy, limits=limits, recorder=self.recorder
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._writer.close()

    def turn(
        self,
        *script: Reply,
        check: Callable[[str], Any] = str,
        turn_timeout_s: float | None = None,
        system: str = "You play.",
    ) -> None:
        """Run a turn, and ignore its error. Its time limit is in virtual time, so only `HANG` exceeds it."""
        request = self._request(script, check, turn_timeout_s, system)
        with contextlib.suppress(MCPError):
            if turn_timeout_s is None:
                self.runner.run_turn(request)
            else:
                run_in_virtual_time(lambda: self.runner.run_turn_async(request))

    def cancelled_turn(self, *script: Reply, when: type) -> None:
        """Run a turn that is cancelled as soon as a message of this kind is recorded."""
        request = self._request(script, str, None, "You play.")

        async def run() -> None:
            with anyio.CancelScope() as scope:

                def cancel(envelope: Envelope[Any], line: bytes) -> None:
                    if isinstance(envelope.body, when):
                        scope.cancel()

                self.recorder.add(cancel)
                await self.runner.run_turn_async(request)

        anyio.run(run)

    def _request(
        self, script: Sequence[Reply], check: Callable[[str], Any], turn_timeout_s: float | None, system: str
    ) -> TurnRequest[Any]:
        self._script.clear()
        self._script.extend(script)
        answer = AnswerSpec(check, fallback="look")
        return TurnRequest(
            system=system, user="You are in a cave.", answer=answer, turn_timeout_s=turn_timeout_s
        )

    def _model(self, mailbox: Mailbox[Any], agent: Mailbox[Any], note: Note) -> ScriptedModel:
        return ScriptedModel(mailbox, agent, self._script)
