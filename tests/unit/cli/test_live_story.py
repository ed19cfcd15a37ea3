"""The story that `grue play` tells of an episode, line by line."""

import re
from typing import Any

from msgspec import Struct

from grue.cli.live_story import Story
from grue.hosts.zork.facts import Decided, EpisodeStarted, Observed
from grue.messages import (
    BatchId,
    CallId,
    CompletionRetried,
    ConnectFailed,
    FinalForced,
    Interrupted,
    LlmFailure,
    McpDisabled,
    RepairRequested,
    ReplyCut,
    ServerDied,
    ServerFailure,
    ServerName,
    ServerNoted,
    ToolCalled,
    ToolCallResult,
    ToolDrifted,
    ToolRejected,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
    TurnFailed,
)
from grue.tracing.columns import cells
from grue.tracing.facts import EpisodeResumed

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


def shown(*bodies: Struct, colour: bool = False, width: int = 80, beside_status: bool = False) -> str:
    story = Story(beside_status=beside_status)
    lines = [line for body in bodies for line in story.lines(body)]
    return "".join(f"{row}\n" for line in lines for row in line.rows(width, colour=colour))


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
        "The model is a script that comes with grue. No LLM is used.",
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
        FinalForced(
            reason="max_iterations", iterations=20
        ): "final answer after 20 iterations (max iterations)",
        RepairRequested(reason="it contains no JSON object"): "asked once more, because it contains",
        CompletionRetried(
            request=1, attempt=1, delay_s=1.5, failure=REFUSED
        ): "out of order); attempt 2 in 1.5 s",
        ReplyCut(request=1, limit_tokens=None): "cut short at its limit",
        ReplyCut(request=1, limit_tokens=500, retried_with=900): "again with a limit of 900 tokens",
        ToolDrifted(server=SERVER, tool="think", change="added"): "mind.think is not among the approved",
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


def returned(text: str = "fine", *, is_error: bool = False, duration_s: float = 2.34) -> ToolReturned:
    result = ToolCallResult(text, is_error=is_error, error_message=text if is_error else None)
    return ToolReturned(batch=BATCH, call_id=CALL, result=result, duration_s=duration_s)


def test_beside_a_status_line_a_call_is_told_when_it_is_done_and_how_long_it_took() -> None:
    call = called(thought="A door.")
    assert shown(call, beside_status=True) == ""
    assert shown(call, returned(), beside_status=True) == "  mind.think (2.34 s): A door.\n"
    failed = shown(call, returned("no such file", is_error=True), beside_status=True)
    assert failed.splitlines() == ["  mind.think (2.34 s): A door.", "  ! no such file"]
    late = ToolTimedOut(batch=BATCH, call_id=CALL, timeout_s=30, duration_s=30.1)
    assert shown(call, late, beside_status=True).splitlines() == [
        "  mind.think (30.10 s): A door.",
        "  ! no answer within 30 s",
    ]
    dead = ServerDied(server=SERVER, batch=BATCH, call_id=CALL, failure=BROKEN, duration_s=0.5)
    assert "mind.think (500 ms)" in shown(call, dead, beside_status=True)


def test_beside_a_status_line_a_call_without_an_end_is_told_when_its_turn_is_over() -> None:
    over = TurnFailed(turn=1, failure=Interrupted(reason="Ctrl-C"))
    text = shown(called(thought="A door."), over, over, beside_status=True)
    assert text == "  mind.think (given up): A door.\n"


def test_beside_a_status_line_progress_is_left_to_it() -> None:
    progress = ServerNoted(server=SERVER, kind="progress", text="3/10 reading")
    assert shown(progress, beside_status=True) == ""


def test_a_tool_that_drifted_is_told_of_once() -> None:
    drift = ToolDrifted(server=SERVER, tool="think", change="removed")
    assert shown(drift, drift).count("no longer listed") == 1


def test_an_episode_that_goes_on_says_so() -> None:
    assert shown(EpisodeResumed(episode_id="e", turns=12)) == "Resuming e after 12 turns.\n"
    assert shown(EpisodeResumed(episode_id="e", turns=1)) == "Resuming e after 1 turn.\n"


def test_in_colours_only_the_name_of_a_tool_stands_out() -> None:
    first, second = shown(called(thought="thought " * 20), colour=True).splitlines()[:2]
    assert first.startswith("\x1b[36m  mind.think\x1b[0m\x1b[2m: thought")
    assert second.startswith("\x1b[2m    thought")


def test_colours_change_no_word() -> None:
    bodies = (started(), seen(1, "A hall. " * 20), called(thought="a " * 90), decided(1, reasoning="b " * 90))
    for width in (20, 40, 80):
        plain = shown(*bodies, width=width)
        assert re.sub("\x1b\\[[0-9]*m", "", shown(*bodies, width=width, colour=True)) == plain


def test_wide_characters_keep_to_the_width_too() -> None:
    rows = shown(called(thought="我看见一扇门,门后面是一个花园。" * 9), width=41).splitlines()
    assert max(map(cells, rows)) <= 41
    assert "".join(row.strip() for row in rows).endswith("门,门后面是一个花园。")
    assert not any("\0" in row for row in rows)


def test_a_name_that_is_longer_than_a_row_is_broken() -> None:
    long = ToolCalled(server=ServerName("s" * 30), batch=BATCH, call_id=CALL, tool="t" * 30, arguments={})
    assert max(map(len, shown(long, width=20).splitlines())) <= 20
    assert shown(long, width=20, colour=True).count("\x1b[0m") == len(shown(long, width=20).splitlines())


def test_a_pattern_that_matches_no_tool_is_told_of_once() -> None:
    noted = ServerNoted(
        server=SERVER, kind="bad_tool", text="the tool policy has 'thnk', which matches no tool"
    )
    told = shown(noted, noted)
    assert told.count("the tool policy has 'thnk'") == 1
