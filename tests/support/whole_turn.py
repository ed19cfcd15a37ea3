"""A turn of a conversation with every field that appears in OpenTelemetry spans."""

from typing import Any

from recorded_turns import Tape

from grue.messages import (
    AnswerSchema,
    CallTools,
    CompletionReceived,
    HistoryReference,
    IterationStarted,
    ModelAsked,
    OfferTools,
    OpenSession,
    ReplyFacts,
    RequestCompletion,
    RequireAnswer,
    RunTurn,
    ServerCall,
    SessionClosed,
    SessionOpened,
    SystemText,
    ToolCall,
    ToolCalled,
    ToolCallResult,
    ToolDefinition,
    ToolMessage,
    ToolReturned,
    TurnCompleted,
    Usage,
    UserText,
)
from grue.runtime.trace.recorder import Envelope, Observer

SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "max_tokens": 500,
    "stop": ["END"],
    "seed": 7,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.2,
    "n": 2,
    "service_tier": "flex",
}
ASKS = ModelAsked(
    model="gpt-large",
    address="https://api.openai.com/v1",
    provider="openai",
    wire="responses",
    sampling=SAMPLING,
)
SCHEMA = AnswerSchema(name="move", schema={"type": "object"})
THINK = ToolDefinition(
    server="thoughtbox", tool="think", description="Write a thought down.", input_schema={"type": "object"}
)
USAGE = Usage(
    input_tokens=100, cached_tokens=60, cache_write_tokens=20, output_tokens=40, reasoning_tokens=30
)


def record_turn(*observers: Observer, address: str = "https://tools.example/mcp") -> None:
    """Record the turn: a question, a tool call, its result, and the answer."""
    turn = _Turn(Tape(*observers))
    turn.ask(address)
    turn.answer()


class _Turn:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def _say(self, body: Any, sender: str, cause: Envelope[Any] | None) -> Envelope[Any]:
        self._tape.tick(0.1)
        number = None if cause is None else cause.seq
        return self._tape.recorder.record(body, sender=sender, receiver="agent", cause=number, turn=1)

    def ask(self, address: str) -> None:
        history = HistoryReference(conversation="talk-1", length=0, digest="")
        self._run = run = self._say(
            RunTurn(
                turn=1,
                system="You play.",
                user="A house.",
                servers=("thoughtbox",),
                answer=SCHEMA,
                history=history,
                asks=ASKS,
                stream=True,
            ),
            "host",
            None,
        )
        self._say(OpenSession(server="thoughtbox", turn=1, timeout_s=10.0), "agent", run)
        opened = SessionOpened(
            server="thoughtbox", tools=(THINK,), protocol_version="2025-11-25", address=address
        )
        self._say(opened, "thoughtbox", run)
        self._say(IterationStarted(iteration=1, max_iterations=3), "agent", run)
        new = (SystemText("You play."), UserText("A house."))
        first = RequestCompletion(
            conversation="talk-1", request=1, new=new, mode=OfferTools(tools=(THINK,)), stream=True
        )
        asked = self._say(first, "agent", run)
        calls = (ToolCall(call_id="call_1", name="thoughtbox.think", arguments='{"thought": "A lamp."}'),)
        facts = ReplyFacts(id="resp_1", service_tier="flex", system_fingerprint="fp_1", first_chunk_s=0.25)
        reply = CompletionReceived(
            request=1,
            content="Let me think.",
            reasoning="Dark in there.",
            tool_calls=calls,
            finish_reason="tool_calls",
            model="gpt-large-2026-11-01",
            usage=USAGE,
            facts=facts,
        )
        self._say(reply, "llm", asked)

    def answer(self) -> None:
        batch = CallTools(
            server="thoughtbox",
            batch=1,
            calls=(ServerCall(call_id="call_1", tool="think", arguments={"thought": "A lamp."}),),
            timeout_s=30.0,
        )
        sent = self._say(batch, "agent", self._run)
        called = ToolCalled(
            server="thoughtbox", batch=1, call_id="call_1", tool="think", arguments={"thought": "A lamp."}
        )
        self._say(called, "thoughtbox", sent)
        result = ToolCallResult(content="noted")
        self._say(
            ToolReturned(batch=1, call_id="call_1", result=result, duration_s=0.1, request_id="3"),
            "thoughtbox",
            sent,
        )
        second = RequestCompletion(
            conversation="talk-1",
            request=2,
            new=(ToolMessage("call_1", '{"content": "noted"}'),),
            mode=RequireAnswer(answer=SCHEMA),
            stream=True,
        )
        again = self._say(second, "agent", self._run)
        answer = CompletionReceived(
            request=2,
            content='{"action": "take lamp"}',
            finish_reason="stop",
            model="gpt-large-2026-11-01",
            usage=USAGE,
            facts=ReplyFacts(id="resp_2", service_tier="flex", system_fingerprint="fp_1", first_chunk_s=0.5),
        )
        self._say(answer, "llm", again)
        self._say(SessionClosed(server="thoughtbox"), "thoughtbox", self._run)
        end = TurnCompleted(
            turn=1,
            kind="answered",
            answer={"action": "take lamp"},
            iterations=1,
            requests=2,
            usage=USAGE + USAGE,
        )
        self._say(end, "agent", self._run)
