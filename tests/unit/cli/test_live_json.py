"""What `grue play --json` prints."""

import io
import json

from grue.cli.live import JsonLines
from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted, Observed
from grue.messages import CallId, ToolCallRecord, ToolCallResult, TurnCompleted
from grue.runtime.trace.recorder import Recorder


def observed(text: str, score: int) -> Observed:
    return Observed(turn=1, text=text, location="Hall", score=score, max_score=100)


def test_json_has_a_line_for_the_episode_each_turn_and_the_end() -> None:
    out, recorder = io.StringIO(), Recorder()
    recorder.add(JsonLines(out))
    started = EpisodeStarted(episode_id="e", game="The House", game_hash="1", seed=7, model="m")
    decided = Decided(turn=1, action="north", reasoning="why not", new_objective=None, kind="answered")
    record = ToolCallRecord(
        call_id=CallId("c1"),
        name="mind.think",
        arguments="{}",
        iteration=1,
        settlement="returned",
        result=ToolCallResult("x"),
    )
    end = EpisodeEnded(reason="won", detail="the game is won", turns=1, score=5, max_score=100)
    turn = TurnCompleted(turn=1, kind="answered", tool_calls=(record,))
    for body in (started, observed("A hall.", 0), turn, decided, observed("Won.", 5), end):
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


def test_a_turn_whose_command_got_no_answer_is_printed_before_the_end() -> None:
    out, recorder = io.StringIO(), Recorder()
    recorder.add(JsonLines(out))
    decided = Decided(turn=1, action="north", reasoning="", new_objective=None, kind="answered")
    for body in (observed("A hall.", 0), decided, EpisodeEnded(reason="failed", detail="it broke", turns=1)):
        recorder.record(body, sender="host")
    turn, end = (json.loads(line) for line in out.getvalue().splitlines())
    assert (turn["action"], turn["reply"], turn["score_after"]) == ("north", None, None)
    assert end["reason"] == "failed"
