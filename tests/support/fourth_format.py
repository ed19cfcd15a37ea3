"""A made-up fourth wire format and its scripted dialect, with features that grue's own formats lack.

The path of a request contains the model, and whether the reply is streamed; it ends with a query. A result
names the called tool. The arguments of a call are an object in the field `with`. A model's thought has to be
sent back; the parts of the echo have no `type`. There are no batches.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from grue import messages as m
from grue.protocol.chat_wire import wire_format as w
from grue.protocol.chat_wire.failures import Fault, fault_in, fault_of_error
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.chat_wire.server_events import ServerEvent
from grue.protocol.json_text import strict_object, to_json
from grue.protocol.tools.names import WireNames
from grue.testing.providers.chat_rules import BROKEN, Json, Owed, event_of, first_choice, pieces, reasoning_of
from grue.testing.providers.dialects import Dialect


class FourthAssembler:
    def __init__(self) -> None:
        self.finished = False
        self.held = 0
        self._reply: dict[str, Any] = {"said": "", "calls": []}

    @property
    def begun(self) -> bool:
        return bool(self._reply["said"] or self._reply["calls"])

    @property
    def whole(self) -> bool:
        return self.finished

    def feed(self, event: ServerEvent) -> Iterable[w.Delta]:
        new = event.object
        self.held += w.weight(new)
        said = w.as_text(new.pop("said", None)) or ""
        self._reply["said"] += said
        self._reply["calls"] += [new.pop("call")] if "call" in new else []
        self._reply |= new
        self.finished = "ended" in new or "error" in new
        return [w.Delta(said)] if said else []

    def body(self) -> bytes:
        return to_json(self._reply)


class FourthFormat(w.WireFormat):
    name = "fourth"
    path = "/models/{model}:reply?form=2"
    stream_path = "/models/{model}:replyInPieces?form=2"
    profile = WireProfile(
        name="generic fourth",
        wire="fourth",
        names="encoded",
        sampling=frozenset(),
        given_cache_markers=0,
        images=False,
    )
    provider = "fourth"
    inputs = frozenset()
    own_fields = frozenset({"talk", "tools", "tool_choice"})
    limit_fields = frozenset({"most"})
    json_objects = False
    echoes_text = True
    results_carry_media = False
    marks_results = False
    batches = None

    def encode_items(
        self, items: Sequence[w.WireItem], marked: Collection[int], profile: WireProfile
    ) -> w.EncodedItems:
        return w.EncodedItems(messages=tuple(to_json(_entry(item, profile)) for item in items))

    def encode_reply(self, reply: w.Reply, names: WireNames) -> tuple[bytes, ...]:
        if not reply.tool_calls and not (reply.content or "").strip():
            return ()
        calls = [
            {
                "id": each.call_id,
                "name": names.to_wire(each.name),
                "with": strict_object(each.arguments) or {},
            }
            for each in reply.tool_calls
        ]
        again = {name: each for part in w.objects(reply.echo.get("parts")) for name, each in part.items()}
        return (to_json({"by": "model", "said": reply.content or "", **again, "calls": calls}),)

    def has_thoughts(self, echo: m.JsonObject) -> bool:
        return any("thought" in part for part in w.objects(echo.get("parts")))

    def tool(self, function: m.JsonObject) -> m.JsonObject:
        return function

    def body(self, request: w.WireRequest) -> bytes:
        answer = {"answer": request.answer.schema} if request.answer else {}
        choice = None if request.choice.mode == "auto" else request.choice.mode  # its API knows no "auto"
        return w.encode_body(request, "talk", {}, choice, answer)

    def read(self, answer: m.JsonObject, ids: w.CallIds, names: WireNames) -> w.Reply | Fault:
        if answer.get("error"):
            return fault_of_error(answer["error"])
        if "ended" not in answer:
            return fault_in(answer, "no end")
        given = w.objects(answer.get("calls"))
        calls = tuple(
            w.read_call(each.get("id"), each.get("name"), each.get("with"), ids, names) for each in given
        )
        reason = w.as_text(answer["ended"])
        said, thought = (w.as_text(answer.get(name)) for name in ("said", "thought"))
        return w.Reply(
            content=said or None,
            reasoning=thought,
            tool_calls=w.unless_cut(calls, given[-1].get("with")) if reason in w.LENGTH and given else calls,
            finish_reason=reason,
            cut=reason in w.LENGTH,
            echo={"parts": [{"said": said or ""}, *([{"thought": thought}] if thought else [])]},
        )

    def assembler(self) -> w.Assembler:
        return FourthAssembler()


def _entry(item: w.WireItem, profile: WireProfile) -> m.JsonObject:
    match item:
        case w.NamedResult(call_id=call_id, name=name):
            said = w.result_text(item, profile)
            return {"by": "tool", "of": call_id, "tool": name, "said": w.non_blank(said)}
        case w.Shown():
            raise AssertionError("the format takes no images")
        case m.AssistantText(text=text):
            return {"by": "model", "said": w.non_blank(text)}
        case m.SystemText(text=text):
            return {"by": "system", "said": w.non_blank(text)}
        case m.UserText():
            return {"by": "user", "said": w.non_blank(w.user_text(item, profile).text)}


_ROLES = {"system": "system", "user": "user", "model": "assistant", "tool": "tool"}


def _to_chat(body: Json) -> Json:
    chat: Json = {"model": body["model"], "messages": [*map(_message, body["talk"])]}
    if "tools" in body:
        chat["tools"] = [{"type": "function", "function": each} for each in body["tools"]]
        chat["tool_choice"] = body.get("tool_choice", "auto")
    return chat


def _message(entry: Json) -> Json:
    message: Json = {"role": _ROLES[entry["by"]], "content": entry["said"] or None}
    if entry["by"] == "tool":
        message["tool_call_id"] = entry["of"]
    if "thought" in entry:
        message["reasoning_content"] = entry["thought"]
    if entry.get("calls"):
        message["tool_calls"] = [
            {
                "id": each["id"],
                "type": "function",
                "function": {"name": each["name"], "arguments": json.dumps(each["with"])},
            }
            for each in entry["calls"]
        ]
    return message


def _from_chat(completion: Json, request: Json) -> Json:
    message, finish = first_choice(completion)
    functions = [(each["id"], each["function"]) for each in message.get("tool_calls") or ()]
    return {
        "said": message.get("content") or "",
        "thought": reasoning_of(message),
        "calls": [
            {"id": call_id, "name": each["name"], "with": _object(each["arguments"])}
            for call_id, each in functions
        ],
        "ended": finish,
    }


def _object(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments  # as a model wrote them that does not write JSON


def _refusals(body: Json, owed: Owed) -> Iterator[str]:
    called: dict[str, str] = {}
    for entry in body["talk"]:
        called |= {each["id"]: each["name"] for each in entry.get("calls") or ()}
        if entry["by"] == "tool" and entry["tool"] != called[entry["of"]]:
            yield f"The result of the call {entry['of']} names another tool: {entry['tool']}."


def _events(reply: Json, request: Json) -> Iterator[bytes]:
    yield from (event_of({"said": piece}) for piece in pieces(reply["said"]))
    yield from (event_of({"call": each}) for each in reply["calls"])
    yield event_of({"thought": reply["thought"], "ended": reply["ended"]})


DIALECT = Dialect(
    name="fourth",
    path="/models/{model}:reply",
    stream_path="/models/{model}:replyInPieces",
    to_chat=_to_chat,
    from_chat=_from_chat,
    error=lambda status, said: {"error": said},
    refusals=_refusals,
    owed=lambda reply: {},
    events=_events,
    broken_off=lambda: event_of({"error": {"message": BROKEN}}),
)
