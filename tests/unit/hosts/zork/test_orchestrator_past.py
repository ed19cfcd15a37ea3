"""What is read of an episode that was cut off, and how the host goes on from it; traces made by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from grue.config.settings import GameConfiguration
from grue.errors import GameError, TraceError
from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted, Observed, Remembered
from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.orchestrator import EpisodeResult, EpisodeSetup, GamePast, ZorkOrchestratorV2, read_past
from grue.messages import (
    CompletionFailed,
    CompletionReceived,
    ConversationId,
    DeadlineMissed,
    Interrupted,
    LlmFailure,
    McpDisabled,
    OfferTools,
    RequestCompletion,
    RunTurn,
    ServerFailure,
    ServerName,
    SessionOpened,
    TurnCompleted,
    TurnFailed,
    Usage,
)
from grue.protocol.turn.connection import Disabled, Proven
from grue.protocol.turn.prices import Spent
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.format import FORMAT
from grue.runtime.trace.recorder import Recorder
from grue.testing.doubles import MockLLMClient
from grue.tracing.facts import ConditionChanged, EpisodeResumed

SECRET = "planted-secret-4711"
MIND = ServerName("mind")
STARTED = EpisodeStarted(episode_id="e-1", game="The Tunnel", game_hash="tunnel-1", seed=3, model="m")
USAGE = Usage(input_tokens=100, output_tokens=10)
Body = TypeVar("Body")


class Tunnel:
    """A game of rooms in a row, a point each: its answers follow from its commands, unless it is `moody`."""

    name = "The Tunnel"
    fingerprint = "tunnel-1"

    def __init__(self, *, moody_after: int | None = None) -> None:
        self.commands: list[str] = []
        self._moody_after = moody_after

    def reset(self, seed: int = 0) -> Observation:
        self.commands, self._room = [], 0
        return self._seen("You wake up.")

    def step(self, command: str) -> Observation:
        self.commands.append(command)
        self._room += command == "north"
        moody = self._moody_after is not None and len(self.commands) > self._moody_after
        text = f"You {command}, {'grumbling' if moody else 'whistling'}."
        return self._seen(text, died=command == "jump", won=self._room == 9, done=self._room == 9)

    def _seen(self, text: str, **more: Any) -> Observation:
        return Observation(text=text, location=f"Room {self._room}", score=self._room, max_score=9, **more)

    def close(self) -> None:
        pass


class Resumed:
    """An episode that is gone on with: what is recorded from then on, and what the model is asked."""

    def __init__(
        self, folder: Path, *answers: str, game: Tunnel | None = None, turns: int = 3, **config: Any
    ) -> None:
        self.bodies: list[Any] = []
        self.client = MockLLMClient()
        for action in answers:
            self.client.add_response(content=answer(action))
        recorder = Recorder()
        recorder.add(lambda envelope, _line: self.bodies.append(envelope.body))
        self.setup = EpisodeSetup(
            game=game or Tunnel(),
            client=self.client,
            recorder=recorder,
            max_turns=turns,
            past=read_past(folder),
        )
        self._config = GameConfiguration(mcp_enabled=False, **config)

    def play(self) -> EpisodeResult:
        self.orchestrator = ZorkOrchestratorV2("e-1", self._config, self.setup)
        return self.orchestrator.play_episode()

    @property
    def asked(self) -> list[str]:
        """The user's texts of the requests."""
        return [str(request["messages"][1]["content"]) for request in self.client.requests]

    def of(self, kind: type[Body]) -> list[Body]:
        return [body for body in self.bodies if isinstance(body, kind)]


def answer(action: str, objective: str | None = None) -> str:
    return json.dumps({"thinking": "Why not.", "action": action, "new_objective": objective})


def write(folder: Path, *bodies: Any) -> Path:
    """Write the trace of an episode that was cut off after these messages."""
    folder.mkdir(exist_ok=True)
    recorder = Recorder(secrets={"TOKEN": SECRET})
    writer = TraceWriter(folder / "trace.jsonl", episode="e-1")
    recorder.add(writer)
    turn = 0
    for body in bodies:
        sender = "agent" if isinstance(body, RequestCompletion) else "host"
        receiver = "agent" if isinstance(body, CompletionReceived) else "trace"
        turn = getattr(body, "turn", turn)
        recorder.record(body, sender=sender, receiver=receiver, turn=turn)
    writer.close()
    return folder


def asks(turn: int, number: int = 1) -> list[Any]:
    """The beginning of a turn, up to a request that nobody has answered."""
    request = RequestCompletion(
        conversation=ConversationId("c"), request=number, new=(), mode=OfferTools(tools=())
    )
    return [RunTurn(turn=turn, system="s", user="u"), request]


def thinks(turn: int, action: str, **more: Any) -> list[Any]:
    """A turn whose decision was not recorded."""
    value = {"thinking": "Why not.", "action": action, "new_objective": more.pop("objective", None)}
    end = TurnCompleted(turn=turn, kind="answered", answer=value, requests=1, usage=USAGE, **more)
    return [*asks(turn), CompletionReceived(request=1, content="...", usage=USAGE), end]


def fails(turn: int, failure: Any) -> list[Any]:
    return [*asks(turn), TurnFailed(turn=turn, failure=failure, requests=1)]


def llm_failure(status: int | None) -> LlmFailure:
    return LlmFailure(kind="refused", endpoint="http://llm", model="m", message="not today", status=status)


def decides(turn: int, action: str, objective: str | None = None, **more: Any) -> Decided:
    return Decided(
        turn=turn, action=action, reasoning="r", new_objective=objective, **{"kind": "answered", **more}
    )


def falls_back(turn: int) -> list[Any]:
    decision = decides(turn, "look", kind="fallback", reason="the line is dead")
    return [*fails(turn, llm_failure(500)), decision]


def plays(*actions: str) -> list[Any]:
    """Whole turns, the first one of the episode first."""
    return [
        body
        for turn, action in enumerate(actions, 1)
        for body in (*thinks(turn, action), decides(turn, action))
    ]


def ends(reason: Any, turns: int) -> EpisodeEnded:
    return EpisodeEnded(reason=reason, detail=f"because of {reason}", turns=turns)


def test_a_decision_without_the_games_answer_is_played_and_not_bought_again(tmp_path: Path) -> None:
    resumed = Resumed(write(tmp_path, STARTED, *plays("north", "south")), turns=2)
    result = resumed.play()
    assert result.commands == ("north", "south")
    assert (result.turns, result.score, result.requests) == (2, 1, 2)
    assert resumed.client.requests == []
    assert [type(body) for body in resumed.bodies if not isinstance(body, Remembered)] == [
        EpisodeResumed,
        Observed,
        EpisodeEnded,
    ]
    first = resumed.bodies[0]
    assert (first.episode_id, first.turns, first.max_turns) == ("e-1", 2, 2)
    changed = ConditionChanged(what="model", before="m", now=GameConfiguration().agent_model)
    assert first.changes == (changed,), "an older trace says the model and nothing else"


def test_a_turn_without_its_decision_is_recalled(tmp_path: Path) -> None:
    turn = thinks(2, "north", objective="Get out.", reason="")
    resumed = Resumed(write(tmp_path, STARTED, *plays("north"), *turn), "east")
    result = resumed.play()
    assert result.commands == ("north", "north", "east")
    first, second = resumed.of(Decided)
    assert (first.turn, first.action, first.reasoning, first.new_objective) == (
        2,
        "north",
        "Why not.",
        "Get out.",
    )
    assert [second.turn, len(resumed.asked)] == [3, 1]
    assert "Turn: 3" in resumed.asked[0]
    assert "- Get out." in resumed.asked[0]
    assert result.requests == 3


def test_a_turn_that_fell_back_is_recalled_as_that(tmp_path: Path) -> None:
    end = TurnCompleted(
        turn=1, kind="fallback", answer={}, raw_response="Hm.", reason="no answer", requests=2
    )
    resumed = Resumed(write(tmp_path, STARTED, *asks(1), end), turns=1)
    result = resumed.play()
    (decided,) = resumed.of(Decided)
    assert (decided.action, decided.kind, decided.reason) == ("look", "fallback", "no answer")
    assert decided.reasoning == "Parse error: no answer. Raw: Hm."
    assert (result.fallbacks, result.requests, resumed.asked) == (1, 2, [])


@pytest.mark.parametrize(
    ("failure", "cause"),
    [(llm_failure(500), "not today"), (DeadlineMissed(limit_s=5, doing="waiting"), "did not end within 5 s")],
)
def test_a_failed_turn_that_becomes_a_fallback_is_not_run_again(
    tmp_path: Path, failure: Any, cause: str
) -> None:
    interrupted = ends("interrupted", 1)
    for folder, more in (("killed", []), ("interrupted", [interrupted])):
        resumed = Resumed(write(tmp_path / folder, STARTED, *fails(1, failure), *more), turns=1)
        assert resumed.play().commands == ("look",)
        (decided,) = resumed.of(Decided)
        assert decided.kind == "fallback"
        assert cause in decided.reason
        assert resumed.asked == []


@pytest.mark.parametrize(
    "failure",
    [
        *map(llm_failure, (401, 402, 403, 404)),
        Interrupted(reason="Ctrl-C"),
        ServerFailure(server=MIND, phase="spawn", command="mind", cause="it is not there", elapsed_s=0.1),
    ],
    ids=lambda failure: f"{type(failure).__name__}-{getattr(failure, 'status', '')}",
)
@pytest.mark.parametrize("ended", [[], [ends("failed", 1)], [ends("interrupted", 1)]])
def test_a_failure_that_ends_an_episode_is_tried_again(
    tmp_path: Path, failure: Any, ended: Sequence[Any]
) -> None:
    resumed = Resumed(write(tmp_path, STARTED, *fails(1, failure), *ended), "north", turns=1)
    result = resumed.play()
    assert (result.commands, result.reason, len(resumed.asked)) == (("north",), "turn_limit", 1)
    assert result.requests == 2


def test_an_episode_that_ctrl_c_ended_goes_on(tmp_path: Path) -> None:
    cut_off = [*plays("north"), *asks(2), ends("interrupted", 2)]
    recalled = [*plays("north"), *thinks(2, "south"), ends("interrupted", 2)]
    asked = Resumed(write(tmp_path / "a", STARTED, *cut_off), "south", turns=2)
    told = Resumed(write(tmp_path / "b", STARTED, *recalled), turns=2)
    assert asked.play().commands == told.play().commands == ("north", "south")
    assert (len(asked.asked), len(told.asked)) == (1, 0)


@pytest.mark.parametrize("reason", ["won", "died", "quit"])
def test_an_episode_that_is_over_for_good_is_not_resumed(tmp_path: Path, reason: str) -> None:
    write(tmp_path, STARTED, *plays("north"), ends(reason, 1))
    (tmp_path / "result.json").write_text(json.dumps({"reason": reason}))
    for path in (tmp_path, tmp_path / "trace.jsonl"):
        with pytest.raises(TraceError, match=rf"it is over \(because of {reason}\)"):
            read_past(path)


@pytest.mark.parametrize("result", [None, '{"reason": "interrupted"}', "cut sho"])
def test_an_episode_that_was_killed_before_its_result_was_written_ends_again(
    tmp_path: Path, result: str | None
) -> None:
    if result is not None:
        (tmp_path / "result.json").write_text(result)
    resumed = Resumed(write(tmp_path, STARTED, *plays(*["north"] * 9), ends("won", 9)), turns=20)
    ended = resumed.play()
    assert (ended.reason, ended.score, resumed.asked) == ("won", 9, [])


def test_with_more_turns_an_episode_goes_on_after_its_limit(tmp_path: Path) -> None:
    write(tmp_path, STARTED, *plays("north"), ends("turn_limit", 1))
    same, more = Resumed(tmp_path, turns=1), Resumed(tmp_path, "south", turns=2)
    assert (same.play().reason, same.asked) == ("turn_limit", [])
    assert (more.play().commands, len(more.asked)) == (("north", "south"), 1)


@pytest.mark.parametrize(
    ("bodies", "kind"),
    [
        ([EpisodeStarted(episode_id="e-1", game=SECRET, game_hash="h", seed=1, model="m")], "EpisodeStarted"),
        ([STARTED, *thinks(1, "north"), decides(1, f"say {SECRET}")], "Decided"),
        ([STARTED, *thinks(1, f"say {SECRET}")], "TurnCompleted"),
    ],
)
def test_without_a_message_that_is_needed_nothing_is_resumed(
    tmp_path: Path, bodies: Sequence[Any], kind: str
) -> None:
    with pytest.raises(TraceError, match=rf"a secret was removed from message \d, {kind}") as refused:
        read_past(write(tmp_path, *bodies))
    assert SECRET not in str(refused.value)


def test_secrets_in_messages_that_are_not_needed_do_no_harm(tmp_path: Path) -> None:
    seen = Observed(turn=1, text=f"A note: {SECRET}")
    bodies = [seen, *thinks(1, "north", raw_response=SECRET), decides(1, "north")]
    past = read_past(write(tmp_path, STARTED, *bodies, Remembered(turn=1, location="Room 0", text=SECRET)))
    assert (past.turns, past.shown, past.remembered) == (1, {}, {1})


def test_a_decision_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the decision of turn 2 is missing"):
        read_past(write(tmp_path, STARTED, *plays("north"), decides(3, "south")))


@pytest.mark.parametrize("bodies", [(), (Observed(turn=1, text="x"),)])
def test_an_episode_that_had_not_begun_is_not_resumed(tmp_path: Path, bodies: Sequence[Any]) -> None:
    with pytest.raises(TraceError, match="its episode had not begun"):
        read_past(write(tmp_path, *bodies))


def test_a_folder_that_is_no_run_a_later_format_and_a_damaged_line_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="Cannot read"):
        read_past(tmp_path)
    trace = write(tmp_path, STARTED, *plays("north")) / "trace.jsonl"
    written = trace.read_text()
    trace.write_text(written.replace(f'"format":{FORMAT}', '"format":99', 1))
    with pytest.raises(TraceError, match="format 99"):
        read_past(tmp_path)
    lines = written.splitlines(keepends=True)
    trace.write_text("".join([*lines[:2], lines[2][:20] + "\n", *lines[3:]]))
    with pytest.raises(TraceError, match="line 3"):
        read_past(tmp_path)


def test_what_is_on_a_half_line_has_not_happened(tmp_path: Path) -> None:
    trace = write(tmp_path, STARTED, *plays("north", "south")) / "trace.jsonl"
    whole = trace.read_bytes()
    trace.write_bytes(whole[:-1])
    assert read_past(tmp_path).turns == 2, "only its newline is missing"
    trace.write_bytes(whole[:-2])
    past = read_past(tmp_path)
    assert past.turns == 1
    assert isinstance(past.end, TurnCompleted)
    assert past.end.turn == 2


def assert_refused(resumed: Resumed, words: str) -> None:
    """Another game is found out before anything is recorded or asked."""
    with pytest.raises(GameError, match=words):
        resumed.play()
    assert resumed.bodies == []
    assert resumed.asked == []


def test_another_version_of_the_game_is_refused(tmp_path: Path) -> None:
    other = Tunnel()
    other.fingerprint = "tunnel-2"
    write(tmp_path, STARTED, *plays("north"))
    assert_refused(Resumed(tmp_path, game=other), "another game, or another version of it: The Tunnel")


@pytest.mark.parametrize("moody_after", [0, 1])
def test_a_game_that_does_not_come_back_is_refused(tmp_path: Path, moody_after: int) -> None:
    """The last answer counts too: what was decided upon it may be recalled."""
    first, second, third = "You wake up.", "You north, whistling.", "You south, whistling."
    north, south = plays("north"), [*thinks(2, "south"), decides(2, "south")]
    seen = [Observed(turn=turn, text=text) for turn, text in enumerate((first, second, third), 1)]
    write(tmp_path, STARTED, seen[0], *north, seen[1], *south, seen[2], *thinks(3, "east"))
    assert Resumed(tmp_path, turns=3).play().commands == ("north", "south", "east")
    assert_refused(Resumed(tmp_path, game=Tunnel(moody_after=moody_after)), "does not come back to turn")


def test_what_was_spent_carries_over_requests_of_a_turn_that_was_cut_off_included(tmp_path: Path) -> None:
    reply = CompletionReceived(request=1, content="...", usage=USAGE)
    cut_off = [*asks(2), reply, asks(2, 2)[1]]
    past = read_past(write(tmp_path, STARTED, *plays("north"), *cut_off, *asks(2)))
    assert past.spent == Spent(requests=4, usage=USAGE + USAGE)
    result = Resumed(tmp_path, "south", turns=2).play()
    assert result.requests == 5
    assert result.usage.input_tokens >= 200


def test_a_budget_that_is_spent_stays_spent(tmp_path: Path) -> None:
    write(tmp_path, STARTED, *plays("north"), *asks(2))
    config = GameConfiguration(mcp_enabled=False)
    config.budget.episode_requests = 2
    resumed = Resumed(tmp_path, "south", budget=config.budget)
    result = resumed.play()
    assert (result.reason, result.turns, resumed.asked) == ("budget", 1, [])
    assert "2 of 2 requests" in result.detail


def test_fallbacks_in_a_row_are_counted_on(tmp_path: Path) -> None:
    write(tmp_path, STARTED, *plays("north"), *falls_back(2), *falls_back(3), *fails(4, llm_failure(500)))
    resumed = Resumed(tmp_path, turns=9)
    result = resumed.play()
    assert (result.reason, result.turns, result.fallbacks) == ("fallbacks", 4, 3)
    assert resumed.asked == []


@pytest.mark.parametrize("since", [[], asks(4), falls_back(4)], ids=["at once", "killed again", "one more"])
def test_fallbacks_that_have_ended_it_are_not_held_against_it_again(
    tmp_path: Path, since: Sequence[Any]
) -> None:
    three = [body for turn in (1, 2, 3) for body in falls_back(turn)]
    folder = write(tmp_path, STARTED, *three, ends("fallbacks", 3), *since)
    result = Resumed(folder, "north", turns=3 + (len(since) > 2) + 1).play()
    assert (result.reason, result.commands[-1]) == ("turn_limit", "north")


def test_deaths_objectives_and_memories_come_back(tmp_path: Path) -> None:
    aims = [f"Aim {number}" for number in range(1, 8)]
    actions = ["north", "jump", "south", "north", "south", "south", "south"]
    bodies = [
        body
        for turn, (action, aim) in enumerate(zip(actions, aims, strict=True), 1)
        for body in (*thinks(turn, action), decides(turn, action, aim))
    ]
    remembered = Remembered(turn=1, location="Room 0", text="'north' brought 1 points")
    resumed = Resumed(write(tmp_path, STARTED, *bodies, remembered), "south", turns=8)
    result = resumed.play()
    assert (result.deaths, result.score) == (1, 2)
    assert resumed.of(Remembered) == [
        Remembered(turn=2, location="Room 1", text="'jump' killed you here"),
        Remembered(turn=4, location="Room 1", text="'north' brought 1 points"),
    ], "only what was not recorded"
    assert "\n".join(["Objectives:", *(f"- {aim}" for aim in aims[-5:])]) in resumed.asked[0]
    assert "- Aim 2\n" not in resumed.asked[0]
    assert "> jump" in resumed.asked[0]


def test_the_time_that_it_was_played_is_its_duration(tmp_path: Path) -> None:
    past = read_past(write(tmp_path, STARTED, *plays("north")))
    assert past.lasted_s > 0
    resumed = Resumed(tmp_path, turns=1)
    resumed.setup.past = past = GamePast(started=STARTED, decided=past.decided, lasted_s=1000.0)
    assert resumed.play().duration_s >= 1000


def test_what_is_known_of_the_servers_is_the_last_word(tmp_path: Path) -> None:
    opened = SessionOpened(server=MIND, tools=())
    assert read_past(write(tmp_path / "a", STARTED, opened, *plays("north"))).connections == {MIND: Proven()}
    gone = McpDisabled(server=MIND, reason="it died", newly=True)
    past = read_past(write(tmp_path / "b", STARTED, opened, *plays("north"), gone))
    assert past.connections == {MIND: Disabled("it died", until_s=0.0)}
    assert read_past(write(tmp_path / "c", STARTED, *asks(1))).connections == {}


def test_a_failed_request_of_a_turn_that_was_cut_off_has_cost_something(tmp_path: Path) -> None:
    failure = LlmFailure(kind="damaged", endpoint="e", model="m", message="no")
    failed = CompletionFailed(request=1, failure=failure, usage=Usage(input_tokens=7))
    past = read_past(write(tmp_path, STARTED, *asks(1)))
    envelope = Recorder().record(failed, sender="llm", receiver="agent", turn=1)
    assert past.take(envelope, Spent(requests=1)) == Spent(requests=1, usage=Usage(input_tokens=7))


def test_requests_of_servers_are_not_the_turns(tmp_path: Path) -> None:
    """What a server asks through sampling is in no turn's count, cut off or not."""
    folder = write(tmp_path, STARTED, *asks(1))
    recorder = Recorder()
    past = read_past(folder)
    sampled = recorder.record(asks(1)[1], sender="mind", receiver="llm-sampling", turn=1)
    assert past.take(sampled, Spent(requests=1)) == Spent(requests=1)
