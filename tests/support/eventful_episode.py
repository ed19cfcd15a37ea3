"""An episode with every event that appears in OpenTelemetry spans."""

from typing import Any

from recorded_turns import Tape, refused_connection

from grue.hosts.zork.facts import EpisodeEnded, EpisodeStarted
from grue.messages import (
    AssistantText,
    CallTools,
    CompletionFailed,
    CompletionReceived,
    CompletionRetried,
    ConnectFailed,
    DeadlineMissed,
    DeadlinePassed,
    FellBack,
    FinalForced,
    IterationStarted,
    LlmFailure,
    McpDisabled,
    OfferTools,
    RepairRequested,
    ReplyCut,
    ReplyUnusable,
    RequestCompletion,
    RequireAnswer,
    RunTurn,
    ServerCall,
    SystemText,
    ToolCall,
    ToolCalled,
    ToolDrifted,
    ToolMessage,
    ToolRejected,
    ToolSkipped,
    ToolSupportChecked,
    ToolTimedOut,
    TurnFailed,
    TurnInterrupted,
    Usage,
    UserText,
)

BUSY = LlmFailure(kind="unavailable", endpoint="http://llm.example:8080/v1", model="m-2", message="busy")
SAID = (SystemText("You play."), UserText("A house."), AssistantText("Hm."), ToolMessage("c0", '{"n": 1}'))
NOTES = [
    "tool_drifted",
    "connect_failed",
    "mcp_disabled",
    "completion_retried",
    "reply_cut",
    "tool_rejected",
    "tool_skipped",
    "reply_unusable",
    "final_forced",
    "repair_requested",
    "fell_back",
    "deadline_passed",
    "turn_interrupted",
]


def record_episode(tape: Tape) -> None:
    """Record the episode: one turn, which fails, and then the end."""
    started = EpisodeStarted(episode_id="e7", game="The House", game_hash="1", seed=7, model="m-1")
    tape.say(started, sender="host")
    _turn(tape)
    tape.say(EpisodeEnded(reason="fallbacks", detail="3 turns in a row fell back", turns=3), turn=3)


def _turn(tape: Tape) -> None:
    def say(*bodies: Any, sender: str = "agent") -> None:
        tape.tick(0.1)
        tape.say(*bodies, turn=3, sender=sender)

    say(RunTurn(turn=3, system="You play.", user="A house.", servers=("a", "b")), sender="host")
    say(
        ToolSupportChecked(model="m-2", endpoint=BUSY.endpoint, supported=True, by="endpoint"),
        ToolDrifted(server="a", tool="t", change="changed", parts=("description",)),
        ConnectFailed(server="b", attempt=2, failure=refused_connection(server="b"), then="disable"),
        McpDisabled(server="b", reason="Connection refused", newly=True),
        IterationStarted(iteration=1, max_iterations=2),
        RequestCompletion(conversation="turn-3", request=1, new=SAID, mode=OfferTools()),
    )
    say(
        CompletionRetried(request=1, attempt=1, delay_s=0.5, failure=BUSY),
        ReplyCut(request=1, limit_tokens=9),
    )
    calls = tuple(ToolCall(call_id=f"c{n}", name="a.t", arguments="{}") for n in (1, 2, 3))
    usage = Usage(input_tokens=9, cached_tokens=4, output_tokens=8, reasoning_tokens=3, cost_usd=0.5)
    reply = CompletionReceived(
        request=1, content="Well.", reasoning="Hm.", tool_calls=calls, model="m-2-0601", usage=usage
    )
    say(reply, sender="llm")
    say(ToolRejected(batch=1, call_id="c1", name="a.dance", error="no such tool"))
    served = tuple(ServerCall(call_id=call.call_id, tool="t", arguments={}) for call in calls[1:])
    say(CallTools(server="a", batch=1, calls=served, timeout_s=9.0))
    say(ToolCalled(server="a", batch=1, call_id="c2", tool="t", arguments={}), sender="a")
    say(ToolTimedOut(batch=1, call_id="c2", timeout_s=9.0, duration_s=9.0), sender="a")
    say(ToolSkipped(batch=1, call_id="c3", reason="Skipped: an earlier one timed out"), sender="a")
    say(
        ReplyUnusable(finish_reason="stop", iteration=1),
        FinalForced(reason="tool_timeout", iterations=1),
        RequestCompletion(conversation="turn-3", request=2, new=(), mode=RequireAnswer()),
    )
    say(CompletionFailed(request=2, failure=BUSY), sender="llm")
    say(RepairRequested(reason="no JSON"), FellBack(reason="no JSON", raw_response="Hm."))
    say(DeadlinePassed(limit_s=5.0), TurnInterrupted(reason="cancelled"))
    say(TurnFailed(turn=3, failure=DeadlineMissed(limit_s=5.0, doing="asking the model"), iterations=1))
