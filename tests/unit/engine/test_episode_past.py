"""How far an episode of any host got: what was spent, which servers work, which turn waits."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from grue.engine.episode_past import Past, has_result
from grue.errors import TraceError
from grue.messages import (
    DeadlineMissed,
    HistoryReference,
    McpDisabled,
    ReplyDropped,
    RequestCompletion,
    RequireAnswer,
    Resumption,
    RunTurn,
    ServerFailure,
    ServerSampled,
    SessionOpened,
    ToolCalled,
    ToolCallRecord,
    ToolCallResult,
    ToolDefinition,
    TurnCompleted,
    TurnFailed,
    TurnParked,
    TurnResumed,
    Usage,
)
from grue.protocol.turn.connection import Disabled, Proven
from grue.protocol.turn.prices import Spent
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder
from grue.tracing.facts import EpisodeEnded, EpisodeResumed, EpisodeStarted, Fact, register_facts
from grue.tracing.reading import EpisodeEnvelope

pytestmark = pytest.mark.made_up_trace


class Filed(Fact, frozen=True, kw_only=True, tag="office.Filed"):
    """The host has used a turn's result."""

    turn: int
    where: str = ""


class OfficePast(Past[EpisodeStarted], kw_only=True):
    filed: list[int] = msgspec.field(default_factory=list)

    def take_fact(self, envelope: EpisodeEnvelope) -> None:
        turn = getattr(envelope.body, "turn", 0)
        if str(envelope.body.__struct_config__.tag) == "office.Filed":
            self.filed.append(turn)
            self.end = None


STARTED = EpisodeStarted(episode_id="e", model="m", conditions={"model": "m"})
USAGE = Usage(input_tokens=3, output_tokens=2)
ASK = RequestCompletion(conversation="c", request=1, new=(), mode=RequireAnswer())
DONE = TurnCompleted(turn=1, kind="answered", answer="x", requests=2, usage=USAGE)
CALL = ToolCallRecord(
    call_id="c1",
    name="a.t",
    arguments="{}",
    iteration=1,
    settlement="returned",
    result=ToolCallResult(content="x"),
)
LATE = TurnFailed(turn=1, failure=DeadlineMissed(limit_s=1, doing="waiting"), requests=1)


def run(turn: int = 1) -> RunTurn:
    return RunTurn(turn=turn, system="s", user="u")


def past(tmp_path: Path, *bodies: Any, secret: str = "") -> OfficePast:
    recorder = Recorder()
    if secret:
        recorder.hide("KEY", secret)
    writer = TraceWriter(tmp_path / "trace.jsonl", episode="e")
    recorder.add(writer)
    for body in bodies:
        sender = "agent" if isinstance(body, RequestCompletion) else "host"
        recorder.record(body, sender=sender, turn=0)
    writer.close()
    return OfficePast.read(tmp_path, needed=(Filed,))


def test_a_result_waits_until_the_host_has_used_it(tmp_path: Path) -> None:
    assert past(tmp_path, STARTED, run(), DONE).end == DONE


def test_a_fact_that_uses_the_result_ends_the_wait(tmp_path: Path) -> None:
    read = past(tmp_path, STARTED, run(), DONE, Filed(turn=1))
    assert (read.end, read.filed, read.spent) == (None, [1], Spent(requests=2, usage=USAGE))


def test_an_unfinished_turn_is_paid_for(tmp_path: Path) -> None:
    read = past(tmp_path, STARTED, run(), LATE, run(2), ASK)
    assert read.spent == Spent(requests=2)
    assert read.end == LATE


def test_turns_that_ran_at_the_same_time_are_each_paid_for_once(tmp_path: Path) -> None:
    """Of three turns of a `map`, the second is cut off; the third is run again after a resume."""
    recorder = Recorder()
    recorder.add(writer := TraceWriter(tmp_path / "trace.jsonl", episode="e"))
    recorder.record(STARTED, sender="host")
    for turn in (1, 2, 3):
        recorder.record(run(turn), sender="host", receiver="agent", turn=turn)
        recorder.record(ASK, sender="agent", receiver="llm", turn=turn)
    recorder.record(ASK, sender="agent", receiver="llm", turn=1)
    recorder.record(DONE, sender="agent", receiver="host", turn=1)
    recorder.record(run(3), sender="host", receiver="agent", turn=3)
    again = replace(DONE, turn=3)
    recorder.record(again, sender="agent", receiver="host", turn=3)
    writer.close()
    assert OfficePast.read(tmp_path).spent == Spent(requests=2 + 1 + 1 + 2, usage=USAGE + USAGE)


def test_a_reply_that_an_unfinished_turn_dropped_is_paid_for(tmp_path: Path) -> None:
    read = past(tmp_path, STARTED, run(), ASK, ReplyDropped(request=1, usage=USAGE), ASK)
    assert read.spent == Spent(requests=2, usage=USAGE)


def test_what_servers_asked_the_model_in_an_unfinished_turn_is_paid_for(tmp_path: Path) -> None:
    read = past(tmp_path, STARTED, run(), ASK, ServerSampled(server="a", usage=USAGE), run(2))
    assert read.spent == Spent(requests=2, usage=USAGE)


def test_a_parked_turn_waits_and_is_counted_once(tmp_path: Path) -> None:
    parked = TurnParked(turn=1, requests=1)
    waiting = past(tmp_path, STARTED, run(), ASK, parked)
    assert (waiting.parked, waiting.spent, waiting.end) == (parked, Spent(), None)


@pytest.mark.parametrize("earlier", [(TurnParked(turn=1, requests=1),), ()], ids=["parked", "killed"])
def test_a_turn_that_was_resumed_is_counted_once(tmp_path: Path, earlier: tuple[Any, ...]) -> None:
    resumed = TurnResumed(turn=1, after=2)
    read = past(tmp_path, STARTED, run(), ASK, *earlier, resumed, run(), ASK, DONE)
    assert (read.parked, read.spent.requests, read.end) == (None, 2, DONE)


PARKED = TurnParked(turn=1, requests=2, tool_calls=(CALL,))
NOT_STARTED = TurnFailed(
    turn=1,
    failure=ServerFailure(server="a", phase="spawn", command="c", cause="x", elapsed_s=0.1),
    requests=2,
    tool_calls=(CALL,),
)
RESUMED = (TurnResumed(turn=1, after=1), replace(run(), resumed=Resumption(parked=PARKED)))
ENDED = TurnCompleted(turn=1, kind="answered", requests=3, tool_calls=(CALL, CALL))


def test_a_resumption_that_leaves_the_turn_parked_is_not_counted(tmp_path: Path) -> None:
    """Its end has the cost of the whole turn, as the end of the next resumption has."""
    waiting = past(tmp_path, STARTED, run(), PARKED, *RESUMED, NOT_STARTED)
    assert (waiting.parked, waiting.spent, waiting.tool_calls) == (PARKED, Spent(), 0)
    (tmp_path / "trace.jsonl").unlink()
    ended = past(tmp_path, STARTED, run(), PARKED, *RESUMED, NOT_STARTED, *RESUMED, ENDED)
    assert (ended.parked, ended.spent.requests, ended.tool_calls) == (None, 3, 2)


def test_a_resumption_that_has_called_a_tool_and_then_fails_ends_the_turn(tmp_path: Path) -> None:
    called = ToolCalled(server="a", batch=1, call_id="c2", tool="t", arguments={})
    read = past(tmp_path, STARTED, run(), PARKED, *RESUMED, called, NOT_STARTED)
    assert (read.parked, read.spent.requests, read.tool_calls) == (None, 2, 1)


def test_a_turn_stays_parked_while_turns_of_other_conversations_run(tmp_path: Path) -> None:
    other = replace(PARKED, turn=2)
    bodies = [STARTED, run(), PARKED, run(2), other, run(3)]
    assert past(tmp_path, *bodies).parked == other
    (tmp_path / "trace.jsonl").unlink()
    again = replace(RESUMED[1], turn=2, resumed=Resumption(parked=other))
    ended = replace(ENDED, turn=2)
    assert past(tmp_path, *bodies, again, ended).parked == PARKED


def test_a_turn_is_not_parked_any_more_if_its_conversation_has_gone_on(tmp_path: Path) -> None:
    first, second = (
        replace(run(number), history=HistoryReference(conversation="c", length=0, digest=""))
        for number in (1, 2)
    )
    assert past(tmp_path, STARTED, first, PARKED, second).parked is None


def test_the_state_of_each_server_and_the_last_runs_conditions_are_known(tmp_path: Path) -> None:
    resumed = EpisodeResumed(episode_id="e", turns=0, max_turns=9, conditions={"model": "n"})
    tool = ToolDefinition(server="a", tool="t", input_schema={})
    opened, gone = (
        SessionOpened(server="a", tools=(tool,)),
        McpDisabled(server="b", reason="r", newly=True, last_words="w"),
    )
    read = past(tmp_path, STARTED, opened, gone, resumed)
    assert read.connections == {"a": Proven(), "b": Disabled("r", until_s=0.0, last_words="w")}
    assert (read.conditions, read.max_turns) == ({"model": "n"}, 9)
    assert read.listings == {"a": (tool,)}


def test_a_listing_from_which_a_secret_was_removed_is_not_known(tmp_path: Path) -> None:
    tool = ToolDefinition(server="a", tool="t", description="Say hello-hello-hello.", input_schema={})
    read = past(tmp_path, STARTED, SessionOpened(server="a", tools=(tool,)), secret="hello-hello-hello")
    assert (read.connections, read.listings) == ({"a": Proven()}, {})


def test_a_trace_that_cannot_be_resumed_says_why(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="its episode had not begun"):
        past(tmp_path, run())


def test_a_fact_that_is_needed_must_be_whole(tmp_path: Path) -> None:
    register_facts("office", Filed)
    with pytest.raises(TraceError, match=r"a secret was removed from message 2, office\.Filed"):
        past(tmp_path, STARTED, Filed(turn=1, where="planted-secret"), secret="planted-secret")


def test_a_result_file_belongs_to_its_end(tmp_path: Path) -> None:
    ended = EpisodeEnded(reason="done", detail="d", turns=1)
    assert not has_result(tmp_path, ended)
    (tmp_path / "result.json").write_text('{"reason": "done"}')
    assert has_result(tmp_path, ended)
    assert has_result(tmp_path / "trace.jsonl", ended)
    assert not has_result(tmp_path, EpisodeEnded(reason="failed", detail="d", turns=1))
    (tmp_path / "result.json").write_text("{")
    assert not has_result(tmp_path, ended)
