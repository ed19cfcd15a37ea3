"""A trace for tests of the viewer's story: it has every kind of event that a turn can have."""

import base64
import zlib
from pathlib import Path
from typing import Any

from viewer_traces import EpisodeTape

from grue.hosts.zork.facts import Decided, Observed
from grue.messages import (
    AnswerSchema,
    AskApproval,
    AssistantReply,
    Attachment,
    CallsDecided,
    CallTools,
    Cleared,
    CompletionReceived,
    CompletionRetried,
    HistoryReference,
    HistoryRewritten,
    LlmFailure,
    OfferTools,
    RequestCompletion,
    RequireAnswer,
    RewriteHistory,
    Rewritten,
    RunTurn,
    Said,
    ServerCall,
    SystemText,
    TextDelta,
    ToolCall,
    ToolCalled,
    ToolCallResult,
    ToolDefinition,
    ToolMessage,
    ToolReturned,
    TurnCompleted,
    TurnParked,
    TurnResumed,
    Usage,
    UserText,
)
from grue.policies import ApprovalDecision, ApprovalQuestion
from grue.tracing.facts import EpisodeEnded, EpisodeStarted

TALK: Any = "talk-1"


def png(side: int = 24) -> str:
    """Return a picture as base64: a red square."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return len(data).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    row = b"\0" + b"\xc0\x20\x20" * side
    head = side.to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    rows = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row * side, 0)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + rows).decode()


TOOL = ToolDefinition(
    server="mind",
    tool="look",
    description="Looks at a place.",
    input_schema={"type": "object", "properties": {"place": {"type": "string"}}},
)


class Story:
    """Writes an episode of three turns that continue one conversation."""

    def __init__(self, tape: EpisodeTape) -> None:
        self.tape = tape

    def say(self, body: Any, way: str, cause: int | None = None, after_s: float = 0.001) -> int:
        return self.tape.say(body, way, cause=cause, after_s=after_s)

    def write(self) -> None:
        started = EpisodeStarted(episode_id="e", model="m-1", servers=("mind",))
        self.say(started, "host trace")
        self.streamed_turn()
        self.sampling_turn()
        self.rewritten_turn()
        self.tape.turn = 0
        self.say(EpisodeEnded(reason="done", detail="All is said.", turns=3), "host trace")

    def begin(self, length: int, **fields: Any) -> int:
        self.tape.turn += 1
        turn = self.tape.turn
        history = HistoryReference(conversation=TALK, length=length, digest="")
        run = RunTurn(turn=turn, system="Play.", servers=("mind",), stream=True, history=history, **fields)
        return self.say(run, "host agent")

    def ask(self, run: int, number: int, *new: Any, **fields: Any) -> int:
        mode = fields.pop("mode", OfferTools(None))
        asked = RequestCompletion(conversation=TALK, request=number, new=new, mode=mode, stream=True)
        return self.say(asked, fields.pop("way", "agent llm"), run)

    def answer(self, asked: int, number: int, way: str = "llm agent", **fields: Any) -> int:
        usage = Usage(input_tokens=1200, output_tokens=34)
        reply = CompletionReceived(request=number, usage=usage, model="m-1", elapsed_s=1.0, **fields)
        return self.say(reply, way, asked, 0.5)

    def stream(self, asked: int, number: int, *pieces: str, part: Any = "content") -> None:
        for piece in pieces:
            self.say(TextDelta(request=number, text=piece, part=part), "llm trace", asked, 0.1)

    def streamed_turn(self) -> None:
        """Write a turn with a retried request, a call that returns an image, and an answer."""
        user = "You stand in a hall. **A lamp** burns."
        self.tape.turn = 1
        seen = Observed(turn=1, text=user, location="Hall", score=0, inventory=("lamp", "rope"))
        self.say(seen, "host trace")
        self.tape.turn = 0
        run = self.begin(0, user=f"Now: {user}")
        tools = OfferTools((TOOL,))
        asked = self.ask(run, 1, SystemText("Play."), UserText(f"Now: {user}"), mode=tools)
        self.stream(asked, 1, "A false ", "start")
        failure = LlmFailure(kind="unavailable", endpoint="http://llm.invalid", model="m-1", message="busy")
        retried = CompletionRetried(request=1, attempt=1, delay_s=0.3, failure=failure)
        self.say(retried, "llm trace", asked)
        self.say(TextDelta(request=1, text="", restart=True), "llm trace", asked)
        self.stream(asked, 1, "I wonder", part="reasoning")
        self.stream(asked, 1, "Let me ", "look.")
        call = ToolCall(call_id="c1", name="mind.look", arguments='{"place": "hall"}')
        replied = self.answer(
            asked, 1, content="Let me look.", reasoning="I wonder what is here.", tool_calls=(call,)
        )
        self.approve(replied)
        result = ToolCallResult([{"type": "text", "text": "A brass lamp."}, image_block()])
        answered = self.call(run, "c1", result)
        picture = Attachment(kind="image", mime="image/png", data=png(), bytes=100)
        told = ToolMessage("c1", '{"content": "A brass lamp, and an image"}', (picture,))
        schema = AnswerSchema("Move", {"type": "object"})
        last = self.ask(answered, 2, told, mode=RequireAnswer(schema))
        self.answer(last, 2, content='{"action": "take lamp", "why": "It is dark."}')
        self.end(run, '{"action": "take lamp", "why": "It is dark."}')

    def approve(self, replied: int) -> None:
        digests = {"arguments_digest": "a", "definition_digest": "d"}
        about: Any = {"call_id": "c1", "name": "mind.look", **digests}
        question = ApprovalQuestion(**about, arguments={"place": "hall"})
        asked = self.say(AskApproval(questions=(question,)), "agent approval", replied)
        decision = ApprovalDecision(**about, verdict="approve")
        self.say(CallsDecided(decisions=(decision,)), "approval agent", asked)

    def call(self, cause: int, call_id: Any, result: ToolCallResult) -> int:
        calls = (ServerCall(call_id=call_id, tool="look", arguments={"place": "hall"}),)
        batch: Any = {"server": "mind", "batch": 1}
        sent = self.say(CallTools(**batch, calls=calls, timeout_s=1.0), "agent mind", cause)
        called = ToolCalled(**batch, call_id=call_id, tool="look", arguments={"place": "hall"})
        self.say(called, "mind trace", sent)
        returned = ToolReturned(batch=batch["batch"], call_id=call_id, result=result, duration_s=0.25)
        return self.say(returned, "mind agent", sent, 0.25)

    def end(self, run: int, answer: str) -> None:
        done = TurnCompleted(turn=self.tape.turn, kind="answered", answer=answer, raw_response=answer)
        self.say(done, "agent host", run)
        decided = Decided(
            turn=self.tape.turn, action="take lamp", reasoning="It is dark.", new_objective=None,
            kind="answered",
        )  # fmt: skip
        self.say(decided, "host trace")

    def sampling_turn(self) -> None:
        """Write a turn that is parked and resumed. During a call, its server asks the model (sampling)."""
        run = self.begin(4, user="And now?")
        asked = self.ask(run, 1, UserText("And now?"))
        call = ToolCall(call_id="c2", name="mind.look", arguments='{"place": "attic"}')
        replied = self.answer(asked, 1, tool_calls=(call,))
        self.say(TurnParked(turn=self.tape.turn), "agent host", replied)
        self.say(TurnResumed(turn=self.tape.turn, after=replied), "host trace")
        sampled = RequestCompletion(
            conversation="sampling-1", request=1, new=(UserText("What would you do?"),), mode=RequireAnswer()
        )
        question = self.say(sampled, "mind llm", replied)
        self.answer(question, 1, "llm mind", content="Go up.")
        answered = self.call(replied, "c2", ToolCallResult(None, is_error=True, error_message="too dark"))
        last = self.ask(answered, 2, ToolMessage("c2", '{"error": "too dark"}'))
        self.answer(last, 2, content="up")
        self.end(run, "up")

    def rewritten_turn(self) -> None:
        """Write a turn before whose request the history is cleared and rewritten."""
        run = self.begin(8, user="And then?")
        cleared = Cleared(results=(ToolMessage("c1", "(cleared)"),))
        self.say(RewriteHistory(conversation=TALK, change=cleared, reason="window"), "agent llm", run)
        rewritten = Rewritten(1, 2, (AssistantReply(content="(shorter)"), Said((UserText("inserted"),))))
        note = HistoryRewritten(conversation=TALK, rewrite=rewritten, reason="it was too long")
        self.say(note, "llm trace", run)
        asked = self.ask(run, 1, UserText("And then?"))
        self.answer(asked, 1, content="down")
        self.end(run, "down")


def image_block() -> dict[str, object]:
    return {"type": "image", "mimeType": "image/png", "data": png()}


def full_story(path: Path) -> Path:
    """Write the episode to a trace file, and return its path."""
    with EpisodeTape(path) as tape:
        Story(tape).write()
    return path
