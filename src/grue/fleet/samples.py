"""Episodes as material for training: a record for each request, or a trajectory for each episode.

A sample is what a trainer needs of one request: the messages that the model got, the tools on offer, the
reply, and a reward. What the model wrote is told apart by what caused it, not by its role: an assistant's
message that the host has given, or from which calls were left out, is not the model's. The ids of a reply's
tokens are those that the endpoint has reported, so nothing is tokenised again.

A conversation that the trace does not hold as it was sent gives no samples: its beginning is elsewhere, or a
secret in it was replaced. Trajectories are in ATIF, the interchange format of Harbor, version 1.4.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from grue import messages as m
from grue.engine.conversations.recorded_conversation import TalkReader, talk_reader
from grue.protocol.context.history import items_of
from grue.protocol.json_text import strict_object
from grue.protocol.tools.names import openai_tool
from grue.runtime.version import __version__
from grue.tracing.reading import EpisodeEnvelope, open_episode

ATIF = "ATIF-v1.4"


class Sample(Struct, frozen=True, kw_only=True):
    """A request and its reply; a line of `samples.jsonl`.

    Attributes:
        episode: The episode's id.
        settings: The settings of its case.
        repetition: Counts the episodes with equal settings, from 0.
        outcome: What became of the episode.
        reward: The score that was asked for; `None`: the episode has none.
        turn: Number of the turn.
        request: Number of the request in the turn.
        message: Number of the request's message in the trace.
        model: The model that replied.
        messages: What the model got, in the form of chat completions, tools by their canonical names. `by`
            says who wrote a message: `host`, `model`, `tool`, or `grue`, such as the request for a final
            answer or the answer to a call that was not made. Images and files are named, not included.
        tools: The tools on offer, in the form of chat completions.
        reply: The reply, as a message.
        loss_mask: For each of `messages`, then for the reply: 1: the model wrote it in this conversation, and
            it is here as it was written; else 0.
        token_ids: The ids of the reply's tokens, as the endpoint reports them; `None` if it reports none.
        logprobs: Their log-probabilities; `None`: the endpoint does not report them.
    """

    episode: str
    settings: m.JsonObject
    repetition: int
    outcome: str
    reward: float | None
    turn: int
    request: int
    message: int
    model: str
    messages: list[m.JsonObject]
    tools: list[m.JsonObject]
    reply: m.JsonObject
    loss_mask: list[int]
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None


class Origin(Struct, frozen=True, kw_only=True):
    """What a sample says of its episode."""

    episode: str
    settings: m.JsonObject = {}
    repetition: int = 0
    outcome: str = ""
    reward: float | None = None


class _Request(Struct):
    """A request that waits for its reply; `messages` is `None` if nobody knows what was sent."""

    body: m.RequestCompletion
    turn: int
    seq: int
    messages: list[m.JsonObject] | None
    tools: tuple[m.ToolDefinition, ...]
    loss: list[int]


class _SampleReader:
    """Follows the conversations of a trace, and makes samples of their requests.

    Attributes:
        left_out: Replies that gave no sample.
    """

    def __init__(self, talks: TalkReader, origin: Origin) -> None:
        self.left_out = 0
        self._talks = talks
        self._origin = origin
        self._asked: dict[int, _Request] = {}
        self._kept: dict[int, m.AssistantReply] = {}  # by identity: the history keeps them, too
        self._users: set[str] = set()
        self._returned: set[m.CallId] = set()

    def see(self, envelope: EpisodeEnvelope) -> Sample | None:
        """Take the next message; return the sample that it completes."""
        body = envelope.body
        # Only the reply settles a request. That it was cut, or asked for again, has the same cause.
        replied = isinstance(body, m.CompletionReceived)
        request = self._asked.pop(envelope.cause or 0, None) if replied else None
        self._talks.see(envelope)
        match body:
            case m.RunTurn(user=user):
                self._users.add(user)
            case m.ToolReturned(call_id=call_id):
                self._returned.add(call_id)
            case m.RequestCompletion():
                self._asked[envelope.seq] = self._request(envelope, body)
            case m.DropCompletion():
                # The reply to this request was dropped before anything was done with it, so it is no sample.
                self._asked = {
                    seq: each
                    for seq, each in self._asked.items()
                    if (each.body.conversation, each.body.request) != (body.conversation, body.request)
                }
            case m.CompletionReceived() if request is not None:
                return self._sample(request, envelope, body)
        return None

    def _request(self, envelope: EpisodeEnvelope, body: m.RequestCompletion) -> _Request:
        talk = self._talks.talks.get(body.conversation)
        offered = body.mode.tools if isinstance(body.mode, m.OfferTools) else ()
        tools = offered if offered is not None or talk is None else talk.tools
        items: tuple[Any, ...] = body.new
        if talk is not None:
            items = items_of(talk.history.entries) + (body.new if body.aside else ())
        known = not envelope.redacted and (talk is None or not talk.flaw)
        messages = [self._message(item) for item in items] if known else None
        loss = [int(id(item) in self._kept) for item in items]
        return _Request(body, envelope.turn, envelope.seq, messages, tools or (), loss)

    def _sample(
        self, asked: _Request, envelope: EpisodeEnvelope, body: m.CompletionReceived
    ) -> Sample | None:
        talk = self._talks.talks.get(asked.body.conversation)
        if talk is not None and talk.history.unread is not None:
            self._kept[id(talk.history.unread)] = talk.history.unread
        if asked.messages is None or envelope.redacted:
            self.left_out += 1
            return None
        reply = m.AssistantReply(content=body.content or body.refusal, tool_calls=body.tool_calls)
        beside = {"reasoning": body.reasoning} if body.reasoning else {}
        tokens = body.tokens or m.ReplyTokens()
        return Sample(
            **msgspec.structs.asdict(self._origin),
            turn=asked.turn,
            request=body.request,
            message=asked.seq,
            model=body.model,
            messages=asked.messages,
            tools=[openai_tool(tool) for tool in asked.tools],
            reply={**self._message(reply), **beside, "finish_reason": body.finish_reason, "by": "model"},
            loss_mask=[*asked.loss, 1],
            token_ids=tokens.ids or None,
            logprobs=tokens.logprobs or None,
        )

    def _message(self, item: m.ConversationItem | m.AssistantReply) -> m.JsonObject:
        match item:
            case m.SystemText(text=text):
                return {"role": "system", "content": text, "by": "host"}
            case m.UserText(text=text):
                by = "host" if text in self._users else "grue"
                return {"role": "user", "content": text, **_named(item.attachments), "by": by}
            case m.AssistantText(text=text):
                return {"role": "assistant", "content": text, "by": "host"}
            case m.ToolMessage(call_id=call_id, content=text):
                by = "tool" if call_id in self._returned else "grue"
                said = {"role": "tool", "tool_call_id": call_id, "content": text}
                return {**said, **_named(item.attachments), "by": by}
            case m.AssistantReply():
                by = "model" if id(item) in self._kept else "host"
                calls = [
                    {
                        "id": call.call_id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                    for call in item.tool_calls
                ]
                called = {"tool_calls": calls} if calls else {}
                return {"role": "assistant", "content": item.content, **called, "by": by}


def _named(attachments: tuple[m.Attachment, ...]) -> m.JsonObject:
    named = [{"kind": each.kind, "mime": each.mime, "bytes": each.bytes} for each in attachments]
    return {"attachments": named} if named else {}


class Samples:
    """The samples of an episode, in order. Iterate once.

    Args:
        trace: The trace, or its run folder.
        origin: What they say of the episode.

    Attributes:
        left_out: Replies without a sample so far, because the trace does not hold what was sent.

    Raises:
        TraceError: While iterating: the trace is damaged or cannot be read.
    """

    def __init__(self, trace: Path, origin: Origin) -> None:
        self.left_out = 0
        self._trace = trace
        self._origin = origin

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples."""
        reader = _SampleReader(talk_reader(self._trace), self._origin)
        for envelope in open_episode(self._trace):
            sample = reader.see(envelope)
            self.left_out = reader.left_out
            if sample is not None:
                yield sample


# --- Trajectories ---


class _Trajectory(Struct):
    """The steps so far."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    usage: m.Usage = m.Usage()
    system: str | None = None
    model: str = ""
    calls: dict[m.CallId, dict[str, Any]] = field(default_factory=dict)

    def add(self, envelope: EpisodeEnvelope, source: str, message: str, **more: Any) -> dict[str, Any]:
        step = {
            "step_id": len(self.steps) + 1,
            "timestamp": datetime.fromtimestamp(envelope.at, UTC).isoformat(),
            "source": source,
            "message": message,
            **more,
            "extra": {"turn": envelope.turn, "trace_message": envelope.seq},
        }
        self.steps.append(step)
        return step

    def take(self, envelope: EpisodeEnvelope) -> None:
        match envelope.body:
            case m.RunTurn(system=system, user=user):
                self.calls.clear()  # ids are unique in a turn
                if system != self.system:
                    self.system = system
                    self.add(envelope, "system", system)
                self.add(envelope, "user", user)
            case m.RequestCompletion(aside=False, request=number, new=new) if number > 1:
                for item in new:
                    if isinstance(item, m.UserText):
                        self.add(envelope, "user", item.text)
            case m.HistoryRewritten(reason=reason):
                self.add(envelope, "system", f"The history was rewritten: {reason}")
            case m.CompletionReceived() as reply:
                self.reply(envelope, reply)
            case m.TurnCompleted() | m.TurnFailed() | m.TurnParked() as end:
                for record in end.tool_calls:
                    self.observe(record)

    def reply(self, envelope: EpisodeEnvelope, reply: m.CompletionReceived) -> None:
        usage, tokens = reply.usage, reply.tokens or m.ReplyTokens()
        self.usage += usage
        self.model = reply.model or self.model
        metrics = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost_usd": usage.cost_usd,
            "completion_token_ids": list(tokens.ids) or None,
            "logprobs": list(tokens.logprobs) or None,
        }
        calls = [
            {
                "tool_call_id": call.call_id,
                "function_name": call.name,
                "arguments": strict_object(call.arguments) or {},
            }
            for call in reply.tool_calls
        ]
        more: dict[str, Any] = {"model_name": reply.model or None, "reasoning_content": reply.reasoning}
        more |= {"tool_calls": calls or None, "metrics": _present(metrics)}
        step = self.add(envelope, "agent", reply.content or reply.refusal or "", **_present(more))
        self.calls |= {call.call_id: step for call in reply.tool_calls}

    def observe(self, record: m.ToolCallRecord) -> None:
        step = self.calls.get(record.call_id)
        if step is not None:
            content = msgspec.json.encode(record.result.to_dict()).decode()
            observed = step.setdefault("observation", {"results": []})
            observed["results"].append({"source_call_id": record.call_id, "content": content})


def trajectory(trace: Path, origin: Origin) -> dict[str, Any]:
    """Return an episode in ATIF.

    Raises:
        TraceError: The trace is damaged or cannot be read.
    """
    found = _Trajectory()
    for envelope in open_episode(trace):
        found.take(envelope)
    totals = {
        "total_prompt_tokens": found.usage.input_tokens,
        "total_completion_tokens": found.usage.output_tokens,
        "total_cached_tokens": found.usage.cached_tokens,
        "total_cost_usd": found.usage.cost_usd,
        "total_steps": len(found.steps),
    }
    extra = {key: value for key, value in msgspec.to_builtins(origin).items() if key != "episode"}
    return {
        "schema_version": ATIF,
        "session_id": origin.episode,
        "agent": _present({"name": "grue", "version": __version__, "model_name": found.model or None}),
        "steps": found.steps,
        "final_metrics": _present(totals),
        "extra": extra,
    }


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
