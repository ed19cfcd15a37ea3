"""Turns with a real server process, a scripted model over HTTP, and observers of the recorder."""

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from grue.engine.runner import Runner, TurnOutcome, TurnRequest
from grue.errors import MCPError
from grue.hosts.zork.facts import EpisodeEnded, EpisodeStarted
from grue.policies import TurnLimits
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.trace.recorder import Envelope, Observer, Recorder
from grue.testing import faulty_server
from grue.testing.llm_server import LlmReply, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.server_specs import StdioServer
from grue.transports.llm.endpoint import LlmSettings

MODEL = "scripted"
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 40,
    "prompt_tokens_details": {"cached_tokens": 60},
    "completion_tokens_details": {"reasoning_tokens": 30},
    "cost": 0.0025,
}


def with_usage(reply: LlmReply) -> LlmReply:
    """Return the reply with token counts and a cost."""
    body = {**json.loads(reply.body), "usage": USAGE}
    return replace(reply, body=json.dumps(body).encode())


def echoes(*texts: str, tool: str = "faulty.echo") -> LlmReply:
    """Return a reply that calls the echo tool once for each text."""
    return with_usage(tool_calls_reply(*((tool, {"text": text}) for text in texts)))


def answer(text: str = "done") -> LlmReply:
    return with_usage(text_reply(text))


class Watched:
    """An episode of one turn, which has ended when the constructor returns.

    Args:
        observers: Observers of the recorder.
        flags: Flags of the faulty server.
        call_s: Time limit of a tool call.

    Attributes:
        envelopes: The envelopes as observers get them.
        outcome: The turn's outcome, or the error that it raised.
    """

    def __init__(
        self,
        replies: Sequence[LlmReply],
        *observers: Observer,
        episode_id: str = "episode-1",
        flags: Sequence[str] = (),
        call_s: float = 10.0,
    ) -> None:
        self.envelopes: list[Envelope[Any]] = []
        self.outcome: TurnOutcome[str] | MCPError
        recorder = Recorder()
        for observer in (self._keep, *observers):
            recorder.add(observer)
        started = EpisodeStarted(
            episode_id=episode_id, game="The House", game_hash="1", seed=7, model=MODEL, servers=("faulty",)
        )
        recorder.record(started, sender="host")
        command, *args = faulty_server.argv(*flags)
        with ScriptedLlmServer(replies) as llm:
            runner = Runner(
                llm=LlmSettings(base_url=llm.base_url, model=MODEL),
                servers={"faulty": StdioServer(name="faulty", command=command, args=tuple(args))},
                limits=TurnLimits(tool_call_timeout_s=call_s),
                process_limits=ProcessLimits(exit_grace_s=0.2, term_grace_s=0.2),
                recorder=recorder,
            )
            try:
                self.outcome = runner.run_turn(TurnRequest(system="Use the tool.", user="Go on."))
            except MCPError as error:
                self.outcome = error
        ended = EpisodeEnded(reason="turn_limit", detail="all turns are used up", turns=1, score=5)
        recorder.record(ended, sender="host", turn=1)

    def _keep(self, envelope: Envelope[Any], line: bytes) -> None:
        self.envelopes.append(envelope)

    def of(self, kind: type) -> list[Envelope[Any]]:
        return [envelope for envelope in self.envelopes if isinstance(envelope.body, kind)]

    def at_ns(self, envelope: Envelope[Any]) -> int:
        """Return when an envelope was recorded, in nanoseconds of the clock that spans use."""
        first = self.envelopes[0]
        return round((first.at - first.t + envelope.t) * 1e6) * 1000

    def told(self) -> list[tuple[str, str, str]]:
        """Return the kind, sender and receiver of every message: the parts that are equal in each run."""
        return [(type(item.body).__name__, item.sender, item.receiver) for item in self.envelopes]
