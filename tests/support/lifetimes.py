"""Episodes in each mode of a runner (how long loop and sessions live), with a scripted model and a trace."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from _pytest.mark.structures import ParameterSet
from fault_turns import GRACE_S, LIFETIMES, Mode
from transport_servers import faulty

from grue import (
    LlmSettings,
    Recorder,
    Runner,
    StdioServer,
    TraceWriter,
    TurnOutcome,
    TurnRequest,
)
from grue.messages import SessionOpened
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.trace.recorder import Envelope
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

Step: TypeAlias = str | Sequence[tuple[str, dict[str, Any]]]
"""What the model says: a text, or calls, each a tool's full name and its arguments."""

PLAIN_MODES: tuple[Mode, ...] = ("turn", "episode", "ahead", "kept")
"""The lifetimes. The further modes, `beside` and `presumed`, change only when a server starts."""

EVERY_RUN = ("turn", "kept")
"""A session of its own for each turn, and one for all: the two that differ most."""


def modes(*names: Mode) -> list[ParameterSet]:
    """Return modes as parameters of a test. Those that are not in `EVERY_RUN` are marked as slow."""
    return [pytest.param(mode, marks=() if mode in EVERY_RUN else pytest.mark.slow) for mode in names]


ECHO: Step = [("faulty.echo", {"text": "hi"})]
DONE: Step = "done"
ONCE: tuple[Step, ...] = (ECHO, DONE)
STUBBORN = ("--ignore-eof", "--ignore-term")
QUICK = ProcessLimits(exit_grace_s=GRACE_S, term_grace_s=GRACE_S)
SAMPLED = "The model says hello."


def answering(*steps: Step) -> Callable[[LlmRequest], LlmReply]:
    """Return a script for the model: `steps` for the turns, and `SAMPLED` for a server's own requests."""
    left = deque(steps)

    def answer(request: LlmRequest) -> LlmReply:
        if not any(message["role"] == "system" for message in request.messages):
            return text_reply(SAMPLED)
        step = left.popleft()
        return text_reply(step) if isinstance(step, str) else tool_calls_reply(*step)

    return answer


def living(folder: Path, lives: str, *flags: str) -> StdioServer:
    """Return a server that has these faults only in these of its starts, such as `2` for the second."""
    return faulty("--only-in", lives, str(folder / "lives"), *flags)


def settlements(outcome: TurnOutcome[Any]) -> list[str]:
    """Return how each call of the turn was settled."""
    return [call.settlement for call in outcome.tool_calls]


class Episode:
    """A runner, the envelopes that it has recorded, and the requests that the model got."""

    def __init__(self, runner: Runner, llm: ScriptedLlmServer, mode: Mode) -> None:
        self.runner = runner
        self.mode = mode
        self.envelopes: list[Envelope[Any]] = []
        self._llm = llm
        runner.recorder.add(lambda envelope, _line: self.envelopes.append(envelope))

    def turn(self, **request: Any) -> TurnOutcome[Any]:
        return self.runner.run_turn(TurnRequest(**{"system": "s", "user": "u", **request}))

    def said(self, *kinds: type) -> list[Any]:
        return [item.body for item in self.envelopes if isinstance(item.body, kinds)]

    def named(self, *kinds: type) -> list[str]:
        return [type(body).__name__ for body in self.said(*kinds)]

    @property
    def pids(self) -> list[int]:
        """The process ids of the sessions that turns used, in order."""
        return [body.pid for body in self.said(SessionOpened)]

    @property
    def asked(self) -> list[LlmRequest]:
        return list(self._llm.requests)

    def offered(self) -> list[list[str]]:
        return [[tool["function"]["name"] for tool in ask.body.get("tools", ())] for ask in self.asked]


@contextmanager
def episode(
    mode: Mode,
    folder: Path,
    *steps: Step,
    servers: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[Episode]:
    """Yield an episode with a trace in `folder`. Then close it, and assert that nothing of it is left."""
    writer = TraceWriter(folder / f"{mode}.jsonl", episode="lifetimes")
    recorder = Recorder()
    recorder.add(writer)
    with assert_nothing_left(), ScriptedLlmServer(answering(*steps)) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        servers = {"faulty": faulty()} if servers is None else servers
        options = {**LIFETIMES[mode], "recorder": recorder, **options}
        with Runner(llm=settings, servers=servers, **options) as runner:
            yield Episode(runner, llm, mode)
        writer.close()
