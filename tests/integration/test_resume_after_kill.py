"""Kill -9 at any instant, then `--resume`: the same end, the same history, and no turn paid for twice.

The episodes are real but for the model, which is a script behind a real socket: what was asked for there is
what was paid for. `GRUE_KILL_SEED` chooses other instants.
"""

import contextlib
import json
import os
import random
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, TypeAlias

import pytest
from killable_episodes import Episode, Kill, Stage, alive_of, turns_over
from msgspec import Struct

from grue.errors import TraceError
from grue.hosts.zork.facts import Decided, EpisodeStarted, Observed, Remembered
from grue.messages import RequestCompletion, RunTurn, SessionOpened, TurnCompleted
from grue.testing import replay
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, json_reply, tool_calls_reply
from grue.testing.offline import playbook_for
from grue.testing.offline.chat_request import decode_body, read_request
from grue.testing.offline.script import completion, reply
from grue.tracing.reading import EpisodeTrace, read_episode

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

SEED = int(os.environ.get("GRUE_KILL_SEED", "20"))
INSTANTS, TURNS, STAGES = int(os.environ.get("GRUE_KILL_INSTANTS", "50")), 4, 2
THOUGHT = {"thought": "Which way?", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}
SAME = ("commands", "score", "max_score", "turns", "deaths", "fallbacks", "tool_calls", "reason", "detail")
Start: TypeAlias = Literal["before", "when_called"] | None
PLAYBOOK = playbook_for("The House", 7)


class Whole(Struct, frozen=True):
    """The episode that nobody killed.

    Attributes:
        paid: Requests for each turn.
        messages: How many were recorded.
        kinds: Those of its last turn, and what came after.
    """

    result: Mapping[str, Any]
    history: Mapping[str, Any]
    paid: Counter[int]
    messages: int
    kinds: Sequence[str]


class Theatre:
    """Where episodes are played, killed and resumed, several at once, and their requests counted."""

    def __init__(
        self, folder: Path, server: ScriptedLlmServer, stages: Sequence[Stage], start: Start = None
    ) -> None:
        self._folder = folder
        self._start = start
        self._server = server
        self._free: SimpleQueue[Stage] = SimpleQueue()
        for stage in stages:
            self._free.put(stage)

    @contextlib.contextmanager
    def stage(self) -> Iterator[Stage]:
        """A stage that nobody else uses."""
        stage = self._free.get()
        try:
            yield stage
        finally:
            self._free.put(stage)

    def episode(self, name: str) -> Episode:
        """A new episode; `name` is its model's, by which its requests are told from others'."""
        return Episode(
            folder=str(self._folder / name),
            base_url=self._server.base_url,
            model=name,
            turns=TURNS,
            start=self._start,
        )

    def paid(self, episode: Episode) -> Counter[int]:
        """How many completions were asked for, by turn."""
        return Counter(
            turn_of(request)
            for request in list(self._server.requests)
            if request.body.get("model") == episode.model
        )

    def whole(self, name: str = "whole") -> Whole:
        """Play without being disturbed."""
        episode = self.episode(name)
        with self.stage() as stage:
            assert not stage.play(episode).error
        trace = read_episode(Path(episode.folder))
        last = next(e.seq for e in trace.envelopes if isinstance(e.body, RunTurn) and e.body.turn == TURNS)
        kinds = [type(e.body).__name__ for e in trace.envelopes if e.seq >= last]
        started = [e.body.server for e in trace.envelopes if isinstance(e.body, SessionOpened)]
        if self._start and name == "whole":
            assert len(started) == TURNS // 2, "only turns that think start the server"
        return Whole(
            result_of(episode),
            history_of(trace),
            self.paid(episode),
            len(trace.envelopes),
            list(dict.fromkeys(kinds)),
        )


def script(request: LlmRequest) -> LlmReply:
    """Answer as the offline script does, and think before every second turn."""
    if turn_of(request) % 2 == 0 and request.messages[-1]["role"] == "user" and request.tool_names:
        return tool_calls_reply((request.tool_names[0], THOUGHT), (request.tool_names[0], THOUGHT))
    return json_reply(completion(request.raw, reply(read_request(decode_body(request.raw)), PLAYBOOK)))


def turn_of(request: LlmRequest) -> int:
    """The turn that a request belongs to."""
    found = re.search(r"^Turn: (\d+)$", str(request.messages[1]["content"]), re.MULTILINE)
    assert found is not None
    return int(found[1])


def result_of(episode: Episode) -> dict[str, Any]:
    """What an episode came to, as far as it is the same however often it was cut off."""
    result = json.loads(Path(episode.folder, "result.json").read_text(encoding="utf-8"))
    return {name: result[name] for name in SAME}


def history_of(trace: EpisodeTrace) -> dict[str, Any]:
    """What an episode was made of; `asked` tells moves, memories and objectives as the model was told."""
    bodies = [envelope.body for envelope in trace.envelopes]
    return {
        "asked": {(body.turn, body.user) for body in bodies if isinstance(body, RunTurn)},
        "shown": {body for body in bodies if isinstance(body, Observed)},
        "decided": [body for body in bodies if isinstance(body, Decided)],
        "remembered": [body for body in bodies if isinstance(body, Remembered)],
    }


def trace_of(episode: Episode) -> EpisodeTrace | None:
    """The trace, if the episode had begun."""
    with contextlib.suppress(TraceError):
        trace = read_episode(Path(episode.folder))
        if any(isinstance(envelope.body, EpisodeStarted) for envelope in trace.envelopes):
            return trace
    return None


def turns_begun(trace: EpisodeTrace) -> Counter[int]:
    """How often each turn was run."""
    return Counter(e.body.turn for e in trace.envelopes if isinstance(e.body, RunTurn))


def turns_ended(trace: EpisodeTrace) -> set[int]:
    """The turns that had an end."""
    return {e.body.turn for e in trace.envelopes if isinstance(e.body, TurnCompleted)}


def assert_all_dead(episode: Episode) -> None:
    """Assert that what the guard has to kill is dead soon after its host."""
    deadline = time.monotonic() + 60
    while alive := alive_of(episode.model):
        assert time.monotonic() < deadline, f"alive: {alive}"
        time.sleep(0.005)


def kill_and_resume(theatre: Theatre, whole: Whole, name: str, kills: Sequence[Kill]) -> int:
    """Play an episode that is killed, and killed again when resumed; resume it to its end, and compare.

    Returns how often it was killed: its end may have come first.
    """
    killed = 0
    episode = theatre.episode(name)
    cut_off: Counter[int] = Counter()
    over: dict[int, int] = {}
    with theatre.stage() as stage:
        for number, kill in enumerate(kills):
            ended = stage.play(episode, kill, resume=number > 0)
            killed += ended.killed
            assert_all_dead(episode)
            trace = trace_of(episode)
            if trace is None:
                break
            begun = turns_begun(trace)
            had_ended = turns_ended(trace)
            assert turns_over(episode) <= had_ended, "a host acted upon what is not in the trace"
            cut_off |= Counter({turn: begun[turn] for turn in begun.keys() - had_ended})
            paid = theatre.paid(episode)
            over |= {turn: paid[turn] for turn in had_ended - over.keys()}
        ended = stage.play(episode, resume=True)
        if trace is None:
            assert ended.error.startswith("TraceError: "), ended
            assert not theatre.paid(episode)
            shutil.rmtree(episode.folder, ignore_errors=True)
            ended = stage.play(episode)
        assert not ended.error
    assert_all_dead(episode)
    compare(theatre, whole, episode, cut_off, over)
    return killed


def compare(
    theatre: Theatre, whole: Whole, episode: Episode, cut_off: Counter[int], over: Mapping[int, int]
) -> None:
    """Compare an episode with the whole one; `over`: what the turns cost that had ended before a kill."""
    trace = read_episode(Path(episode.folder))
    assert history_of(trace) == whole.history
    assert result_of(episode) == whole.result
    runs = turns_begun(trace)
    assert runs == Counter(range(1, TURNS + 1)) + cut_off, "only a turn that was cut off is run again"
    paid = theatre.paid(episode)
    assert {turn: paid[turn] for turn in over} == over, "a turn that was over is paid for again"
    assert all(whole.paid[turn] <= paid[turn] <= whole.paid[turn] * runs[turn] for turn in runs)
    asked = sum(isinstance(envelope.body, RequestCompletion) for envelope in trace.envelopes)
    assert json.loads(Path(episode.folder, "result.json").read_text())["requests"] == asked
    assert [envelope.seq for envelope in trace.envelopes] == [*range(1, len(trace.envelopes) + 1)]
    assert replay(episode.folder) == sum(runs.values())


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Stage]]:
    folder = tmp_path_factory.mktemp("stages")
    with assert_nothing_left(), contextlib.ExitStack() as stack:
        yield [stack.enter_context(Stage(folder)) for _ in range(STAGES)]


@pytest.fixture(scope="module", params=[None, "when_called"])
def theatre(
    request: pytest.FixtureRequest, stages: list[Stage], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Theatre]:
    folder = tmp_path_factory.mktemp("killed")
    with assert_nothing_left(), ScriptedLlmServer(script) as server:
        theatre = Theatre(folder, server, stages, request.param)
        if request.param:
            theatre.whole("known")  # so that the server's list is
        yield theatre


@pytest.fixture(scope="module")
def whole(theatre: Theatre) -> Whole:
    return theatre.whole()


def killed_in(theatre: Theatre, whole: Whole, cases: Mapping[str, Sequence[Kill]]) -> int:
    """Try every case, several at once; return how many kills there were. What goes wrong is told for all."""
    failures: list[str] = []

    def killed(name: str) -> int:
        try:
            return kill_and_resume(theatre, whole, name, cases[name])
        except AssertionError as error:
            failures.append(f"{cases[name]}: {error}")
            return 0

    with ThreadPoolExecutor(STAGES) as pool:
        kills = sum(pool.map(killed, cases))
    assert not failures, "\n\n".join([f"GRUE_KILL_SEED={SEED}, {len(failures)} failed", *failures])
    return kills


def test_killed_at_50_random_instants_an_episode_comes_to_the_same_end(
    theatre: Theatre, whole: Whole
) -> None:
    chosen = random.Random(SEED)

    def instant(number: int) -> Kill:
        if number % 10 == 0:
            # While it starts up: nothing may be recorded by then.
            return Kill(after_s=chosen.uniform(0, 0.03))
        messages = chosen.randrange(1, whole.messages - 5)
        return Kill(messages=messages, after_s=chosen.uniform(0, 0.008))

    # Some are killed again on their way back, some twice.
    chains = {
        f"instant-{number}": [instant(number), *map(instant, range(chosen.choice([0, 0, 0, 0, 1, 2])))]
        for number in range(INSTANTS)
    }
    assert killed_in(theatre, whole, chains) >= INSTANTS


def test_killed_right_after_each_message_of_its_last_turn_an_episode_comes_to_the_same_end(
    theatre: Theatre, whole: Whole
) -> None:
    at_the_end = {f"after-{kind}": [Kill(kind=kind, turn=TURNS)] for kind in whole.kinds}
    early = {f"{kind}-first": [Kill(kind=kind)] for kind in ("EpisodeStarted", "Observed", "RunTurn")}
    back = {
        f"{kind}-then-{again}": [Kill(kind=kind, turn=2), Kill(kind=again, turn=turn)]
        for kind in ("TurnCompleted", "Decided", "CompletionReceived")
        for again, turn in (("EpisodeResumed", 0), ("Observed", 2), ("Decided", 3))
    }
    assert {"TurnCompleted", "Decided", "ToolReturned", "SessionClosed", "EpisodeEnded"} <= {*whole.kinds}
    cases = at_the_end | early | back
    assert killed_in(theatre, whole, cases) == sum(map(len, cases.values()))
