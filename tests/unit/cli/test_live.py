"""What `grue play` prints while an episode runs."""

import io
import json
from typing import Any

from msgspec import Struct

from grue.cli.live import JsonLines, LiveView
from grue.facts import Decided, EpisodeEnded, EpisodeStarted, Observed
from grue.messages import (
    BatchId,
    CallId,
    CompletionRetried,
    ConnectFailed,
    FinalForced,
    LlmFailure,
    McpDisabled,
    RepairRequested,
    ServerDied,
    ServerFailure,
    ServerName,
    ServerNoted,
    ToolCalled,
    ToolCallRecord,
    ToolCallResult,
    ToolRejected,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
    TurnCompleted,
)
from grue.runtime.trace import Recorder

SERVER, BATCH, CALL = ServerName("mind"), BatchId(1), CallId("c1")
BROKEN = ServerFailure(server=SERVER, phase="call", command="mind", cause="it ended")
REFUSED = LlmFailure(kind="unavailable", endpoint="http://x", model="m", message="out of order")


def started(**fields: Any) -> EpisodeStarted:
    return EpisodeStarted(
        episode_id="e", game="The House", game_hash="1", seed=7, model="m", servers=("mind",), **fields
    )


def seen(turn: int, text: str, score: int | None = 0, **fields: Any) -> Observed:
    return Observed(turn=turn, text=text, location="Hall", score=score, max_score=100, **fields)


def decided(turn: int, action: str = "north", **fields: Any) -> Decided:
    facts = {"reasoning": "why not", "new_objective": None, "kind": "answered"} | fields
    return Decided(turn=turn, action=action, **facts)


def called(**arguments: object) -> ToolCalled:
    return ToolCalled(server=SERVER, batch=BATCH, call_id=CALL, tool="think", arguments=arguments)


def shown(*bodies: Struct, colour: bool = False, width: int = 80) -> str:
    out, recorder = io.StringIO(), Recorder()
    recorder.add(LiveView(out, colour=colour, width=width))
    for body in bodies:
        recorder.record(body, sender="host")
    return out.getvalue()


def test_a_turn_reads_from_the_place_to_the_answer() -> None:
    text = shown(
        started(scripted=True),
        seen(1, "A hall."),
        called(thought="A door."),
        decided(1),
        seen(1, "You go north.", score=5),
    )
    assert text.splitlines() == [
        "The House",
        "model m · tools from mind · seed 7",
        "The model is a script that comes with grue; no LLM is asked.",
        "A hall.",
        "",
        "Turn 1 · Hall · 0/100 points",
        "  mind.think: A door.",
        "  why not",
        "> north",
        "You go north.",
        "+5 points",
    ]


def test_unknown_values_are_left_out() -> None:
    text = shown(Observed(turn=1, text="West of House"), Observed(turn=2, text="North of House"))
    assert text.splitlines() == ["West of House", "", "Turn 1", "North of House", "", "Turn 2"]


def test_colour_is_only_where_it_is_wanted() -> None:
    bodies = (started(), seen(1, "A hall."), decided(1), seen(1, "Ouch.", score=-5))
    assert "\x1b[" not in shown(*bodies)
    assert "\x1b[31m-5 points\x1b[0m" in shown(*bodies, colour=True)


def test_nothing_untrusted_can_move_the_cursor_or_fake_a_line() -> None:
    evil = "\x1b[2J\x07\rTurn 99"
    said = (called(thought=evil), called(**{evil: evil}), decided(1, evil, reasoning=evil))
    text = shown(started(), seen(1, evil), *said)
    assert all(line.isprintable() for line in text.splitlines())
    assert "\nTurn 99" not in text


def test_a_servers_progress_is_shown_and_its_noise_is_not() -> None:
    progress = ServerNoted(server=SERVER, kind="progress", text="3/10 reading\x1b[2J")
    noise = ServerNoted(server=SERVER, kind="noise", text="Server listening")
    assert shown(progress, noise) == "    … 3/10 reading\\u001b[2J\n"


def test_lines_keep_to_a_narrow_terminal() -> None:
    text = shown(started(), seen(1, "word " * 60), called(thought="thought " * 60), decided(1), width=40)
    assert max(len(line) for line in text.splitlines()) <= 40


def test_what_goes_wrong_is_said_in_a_line() -> None:
    texts = {
        ConnectFailed(server=SERVER, attempt=1, failure=BROKEN, then="retry"): "trying once more",
        McpDisabled(server=SERVER, reason="it ended", newly=True): "disabled for the rest of the episode",
        ToolTimedOut(batch=BATCH, call_id=CALL, timeout_s=30): "no answer within 30 s",
        ServerDied(server=SERVER, batch=BATCH, call_id=CALL, failure=BROKEN): "mind died: it ended",
        ToolSkipped(batch=BATCH, call_id=CALL, reason="Skipped: too late"): "Skipped: too late",
        ToolRejected(
            batch=BATCH, call_id=CALL, name="x.y", error="Unknown MCP tool: x.y"
        ): "Unknown MCP tool",
        FinalForced(reason="max_iterations", iterations=20): "final answer (max iterations)",
        RepairRequested(reason="it contains no JSON object"): "asked once more, because it contains",
        CompletionRetried(
            request=1, attempt=1, delay_s=1.5, failure=REFUSED
        ): "out of order); attempt 2 in 1.5 s",
    }
    for body, text in texts.items():
        line = shown(body).strip()
        assert line.startswith("! ")
        assert text in " ".join(line.split())
    error = ToolCallResult(None, is_error=True, error_message="no such file")
    assert "no such file" in shown(ToolReturned(batch=BATCH, call_id=CALL, result=error))
    assert shown(ToolReturned(batch=BATCH, call_id=CALL, result=ToolCallResult("fine"))) == ""
    assert shown(McpDisabled(server=SERVER, reason="it ended")) == ""
    assert "(fallback: no answer)" in shown(decided(1, kind="fallback", reason="no answer"))


def test_json_has_a_line_for_the_episode_each_turn_and_the_end() -> None:
    out, recorder = io.StringIO(), Recorder()
    recorder.add(JsonLines(out))
    record = ToolCallRecord(
        call_id=CALL,
        name="mind.think",
        arguments="{}",
        iteration=1,
        settlement="returned",
        result=ToolCallResult("x"),
    )
    end = EpisodeEnded(reason="won", detail="the game is won", turns=1, score=5, max_score=100)
    turn = TurnCompleted(turn=1, kind="answered", tool_calls=(record,))
    for body in (started(), seen(1, "A hall."), turn, decided(1), seen(1, "Won.", score=5), end):
        recorder.record(body, sender="host")
    episode, turn_line, end_line = (json.loads(line) for line in out.getvalue().splitlines())
    assert (episode["type"], episode["game"]) == ("episode", "The House")
    assert turn_line == {
        "type": "turn",
        "turn": 1,
        "location": "Hall",
        "score": 0,
        "tool_calls": [{"name": "mind.think", "arguments": "{}", "settlement": "returned"}],
        "action": "north",
        "reasoning": "why not",
        "kind": "answered",
        "reason": "",
        "reply": "Won.",
        "score_after": 5,
    }
    assert end_line["reason"] == "won"
