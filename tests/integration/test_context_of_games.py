"""The offline house, played as one long conversation, with and without a `ContextPolicy`."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from grue import AnswerSpec, ContextPolicy, Conversation, Runner
from grue.hosts.zork.agent import SYSTEM_PROMPT, AgentResponse
from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.games.house import HouseGame
from grue.hosts.zork.orchestrator import Move, context_text
from grue.messages import RewriteHistory
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.offline import ScriptedModelTransport, playbook_for
from grue.tool_sessions.function_tools import FunctionTools
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings

SEED = 7
MOST_TURNS = 120
STUB = "[What an earlier turn showed was cleared to save room.]"


def think(thought: str) -> str:
    """Write a thought down, and read it again."""
    return f"{thought} " * 20


class Played(NamedTuple):
    """How an episode ended, and what it took."""

    score: int | None
    moves: list[str]
    tokens: int
    rewrites: int


class House:
    """A house that is played in one conversation."""

    def __init__(self, policy: ContextPolicy | None, trace: Path) -> None:
        self.envelopes: list[Envelope[Any]] = []
        recorder = Recorder()
        self.writer = TraceWriter(trace, episode="house")
        recorder.add(self.writer)
        recorder.add(lambda envelope, _line: self.envelopes.append(envelope))
        self.game = HouseGame()
        transport = ScriptedModelTransport(playbook_for(self.game.name, SEED))
        settings = LlmSettings(
            base_url="http://offline.invalid/v1", model="scripted", force_tool_support=True
        )
        self.runner = Runner(
            llm=LlmEndpoint(settings, transport=transport),
            servers={"think": FunctionTools({"think": think})},
            recorder=recorder,
            context=policy,
            keep="loop",
        )

    def play(self) -> Played:
        with self.runner, self.runner.conversation(system=SYSTEM_PROMPT) as conversation:
            seen, moves = self.game.reset(SEED), []
            for turn in range(1, MOST_TURNS + 1):
                if seen.done:
                    break
                command = self._command(conversation, turn, seen, moves)
                after = self.game.step(command)
                moves.append(Move(command, after.text, seen.location, None))
                seen = after
            self.history = conversation.history
        self.writer.close()
        rewrites = sum(isinstance(envelope.body, RewriteHistory) for envelope in self.envelopes)
        tokens = self.runner.spent.usage.input_tokens
        return Played(seen.score, [move.command for move in moves], tokens, rewrites)

    def _command(self, conversation: Conversation, turn: int, seen: Observation, moves: list[Move]) -> str:
        user = context_text(self.game.name, turn, seen, moves, ["Win."])
        answer = AnswerSpec.from_model(AgentResponse)
        outcome = conversation.ask(user, answer=answer, user_stub=STUB)
        assert outcome.kind == "answered"
        return outcome.response.action


@pytest.mark.slow
def test_the_house_is_won_as_well_at_half_the_tokens(tmp_path: Path) -> None:
    plain = House(None, tmp_path / "plain.jsonl").play()
    house = House(ContextPolicy(window_tokens=8_000), tmp_path / "kept.jsonl")
    kept = house.play()
    assert plain.rewrites == 0
    assert kept.rewrites > 2
    assert (kept.score, kept.moves) == (plain.score, plain.moves)
    assert plain.score == HouseGame().reset(SEED).max_score
    assert kept.tokens < plain.tokens / 2
    resumed = Conversation.from_trace(tmp_path / "kept.jsonl", house.runner)
    assert resumed.history == house.history, "the trace tells what was cleared"
