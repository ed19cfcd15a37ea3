"""How much of each prompt repeats an earlier prompt, and what ended the repetition.

Providers cache the beginning of a prompt (tools, system text, messages) as far as every byte is the same. A
trace does not hold the bytes that were sent, so each conversation is encoded again, without cache markers.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import ContextPolicy
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import WireProfile, with_fields
from grue.protocol.chat_wire.profiles import GENERIC, profile_for
from grue.protocol.context.history import History, Ledger, take_step
from grue.runtime.safe_text import printable
from grue.tracing.message_words import kind_of

PromptPart: TypeAlias = Literal["model", "tools", "system", "messages"]
_MOST_KEPT = 1_000  # most conversations kept when a turn ends; the least recently used go first
_AROUND = 24
_EXCERPT = 72


class PrefixBreak(Struct, frozen=True, kw_only=True):
    """Where a prompt does not repeat the earlier prompt that it is compared with. Texts are untrusted."""

    part: PromptPart  # the first part that differs; `model`: another model was asked
    at_byte: int  # index in tools, system text and messages as encoded, without cache markers
    place: str  # what contains the byte `at_byte`, such as `message 3 (user)`
    before: str = ""  # the earlier prompt around `at_byte`; empty for `model`
    now: str = ""  # this prompt around `at_byte`; empty for `model`
    cause: int  # number of the message in the trace that caused the difference
    cause_kind: str
    why: str
    tokens: int = 0  # about how many are paid again: those of the compared bytes from `at_byte` on


class CachedPrompt(Struct, frozen=True, kw_only=True):
    """One request, compared with an earlier prompt (see `CachedPrompts._nearest`)."""

    seq: int  # number of the `RequestCompletion`
    reply: int  # number of the message that ended the request
    turn: int
    request: int
    conversation: str
    model: str
    prompt_bytes: int
    repeated_bytes: int
    compared_with: int | None = None  # number of the earlier `RequestCompletion`
    after_s: float = 0.0  # seconds between the requests; a provider may cache a prompt for only 5 minutes
    input_tokens: int = 0  # the prompt's tokens, as the endpoint counts them; 0: not known, or reply dropped
    cached_tokens: int = 0  # how many of `input_tokens` were read from the endpoint's cache
    whole: bool = True  # whether the trace holds all messages of the prompt
    broken: PrefixBreak | None = None  # `None`: no compared part differs, or there is no earlier prompt

    @property
    def share(self) -> float:
        """The share of the prompt that repeats the beginning of the earlier prompt, from 0 to 1."""
        return self.repeated_bytes / self.prompt_bytes if self.prompt_bytes else 0.0

    @property
    def repeated_tokens(self) -> int:
        """About how many of the prompt's tokens repeat the beginning of the earlier prompt."""
        return round(self.input_tokens * self.share)


_Place: TypeAlias = tuple[int, str]  # number and kind of a message in the trace
_Why: TypeAlias = tuple[int, str, str]  # number and kind of the message that caused something, and why


class _Form(Struct, frozen=True):
    """The wire profile and the model, and the message that set them."""

    profile: WireProfile
    model: str
    cause: _Place = (0, "")


class _Sent(Struct, frozen=True, kw_only=True):
    """A prompt that was sent; sizes are in bytes."""

    seq: int
    at: float
    model: str
    run: m.RunTurn | None
    whole: bytes  # the encoded tools, system text and messages
    head: int  # size of tools and system text, which other conversations may share
    tools: tuple[m.ToolDefinition, ...]
    parts: tuple[int, int]  # sizes of the tools and of the system text outside of the messages


class _Asked(Struct, frozen=True, kw_only=True):
    """A request under way. `listed`: by server, the latest message about its tools."""

    seq: int
    at: float
    turn: int
    command: m.RequestCompletion
    listed: dict[str, _Place]


class _Prompted(Struct, kw_only=True):
    name: m.ConversationId
    encoded: EncodedConversation
    run: m.RunTurn | None = None
    whole: bool = True  # whether the trace holds all earlier messages of the conversation
    redacted: bool = False  # whether a secret in a message was replaced, so that the digest differs
    sent: dict[bool, _Sent] = {}  # the last prompt with tools (`True`) and the last without
    last: _Sent | None = None
    # For each change of the prompt's messages: how many of their first bytes stayed, and the number and kind
    # of the trace's message that changed them.
    blame: list[tuple[int, int, str]] = []
    asks: m.ModelAsked | None = None  # the model that the running turn asks now
    moved: _Place = (0, "")  # the message that chose this model
    adapted: _Place | None = None  # the message that changed the encoding after the last prompt
    notes: list[_Why] = []  # why the next request may offer no tools


class CachedPrompts:
    """Compares each prompt of a trace with an earlier one. Call `see` with the trace's messages in order."""

    def __init__(self) -> None:
        self.left_out = 0  # how many entries the latest rewrite replaced by one; 0 unless it shortened
        self._talks: dict[m.ConversationId, _Prompted] = {}
        self._turns: dict[int, m.ConversationId] = {}
        self._asked: dict[int, _Asked] = {}
        self._listed: dict[str, _Place] = {}
        self._form = _Form(_unmarked(GENERIC), "")
        self._heads: dict[str, _Sent] = {}
        self._dropping: dict[int, m.ConversationId] = {}

    def see(self, envelope: Any) -> CachedPrompt | None:
        """Return the request that a message ends; `None` if it ends none, reports a failure or is a copy."""
        prompt = self._see(envelope)
        if envelope.redacted:
            for talk in self._running(envelope.turn):
                talk.redacted = True
        return None if envelope.copied else prompt

    def _see(self, envelope: Any) -> CachedPrompt | None:
        body, cause, kind = envelope.body, envelope.cause or 0, kind_of(envelope.body)
        place = (envelope.seq, kind)
        match body:
            case m.RunTurn():
                self._begin(body, place)
            case m.SessionOpened() | m.ToolsChanged() | m.McpDisabled():
                self._listed[body.server] = place
                if isinstance(body, m.McpDisabled):
                    self._note(envelope.turn, place, f"the server {body.server} was given up")
            case m.ToolsPresumed():
                self._listed |= dict.fromkeys((each.server for each in body.listings), place)
            case m.FinalForced() | m.RepairRequested():
                why = "the final answer" if isinstance(body, m.FinalForced) else "another answer"
                self._note(envelope.turn, place, f"{why} was asked for ({printable(body.reason, 200)})")
            case m.RequestCompletion():
                self._ask(body, envelope)
            case m.HistoryRewritten() | m.RewriteHistory():
                self._rewrite(body, place)
            case m.SchemaIgnored():
                self._learn({"ignores_schema": True}, place)
            case m.FormAdapted():
                self._learn(body.changed, place)
                self._adopt_asked(cause)
            case m.ModelPassedOver():
                self._form = self._form_for(body.asks, place)
                if (talk := self._adopt_asked(cause)) is not None:
                    talk.asks, talk.moved = body.asks, place
            case m.DropCompletion():
                self._dropping[envelope.seq] = body.conversation
            case m.ReplyDropped():
                return self._ended(self._dropped(body, envelope), body, envelope.seq)
            case m.CompletionReceived():
                return self._ended(self._asked.pop(cause, None), body, envelope.seq)
            case m.CompletionFailed() if cause in self._asked:
                self._forget_sampling(self._asked.pop(cause).command.conversation)
            case m.TurnCompleted() | m.TurnFailed() if cause in self._turns:
                self._end(self._turns.pop(cause), body)
        return None

    def _begin(self, run: m.RunTurn, place: _Place) -> None:
        past = run.history
        name = run.conversation
        if run.asks is not None:
            self._form = self._form_for(run.asks, place)
        talk = self._talks.get(name)
        if run.resumed is None or talk is None:
            talk = self._found(name, past)
        elif not run.resumed.parked.calls and not run.resumed.new:
            talk.encoded.history.forget()
        take_step(talk.encoded.history, run)
        self._turns[place[0]] = name
        self._talks.pop(name, None)
        self._talks[name] = talk
        talk.run = run
        if talk.asks != run.asks:
            talk.asks, talk.moved = run.asks, place
        talk.notes.append((*place, "the turn offers no tools"))

    def _form_for(self, asks: m.ModelAsked, place: _Place) -> _Form:
        wire = asks.wire if asks.wire in FORMATS else None
        profile = with_fields(profile_for(asks.address, asks.model, wire), asks.form)
        return _Form(_unmarked(profile), asks.model, place)

    def _found(self, name: m.ConversationId, past: m.HistoryReference | None) -> _Prompted:
        """Return the state of the conversation `name`, whose history before the turn is `past`."""
        known = self._talks.get(name)
        if past is None or not past.length:
            return self._new(name)
        if known is not None and known.run is not None:
            known.encoded.close(None)
        if known is not None and _stands_at(known, past):
            return known
        origin = next((talk for talk in self._talks.values() if _stands_at(talk, past)), None)
        if origin is not None:
            return _Prompted(
                name=name,
                encoded=origin.encoded.branch(),
                whole=origin.whole,
                sent={**origin.sent},
                last=origin.last,
            )
        talk = self._new(name)
        talk.whole = False
        return talk

    def _new(self, name: m.ConversationId) -> _Prompted:
        encoded = EncodedConversation(self._form.profile, model=self._form.model, history=History(Ledger()))
        return _Prompted(name=name, encoded=encoded)

    def _note(self, turn: int, place: _Place, why: str) -> None:
        for talk in self._running(turn):
            talk.notes.append((*place, why))

    def _running(self, turn: int) -> list[_Prompted]:
        return [talk for talk in self._talks.values() if talk.run is not None and talk.run.turn == turn]

    def _ask(self, command: m.RequestCompletion, envelope: Any) -> None:
        name = command.conversation
        talk = self._talks.get(name)
        if talk is None:
            talk = self._talks[name] = self._new(name)
        self._adopt(talk)
        self._asked[envelope.seq] = _Asked(
            seq=envelope.seq, at=envelope.t, turn=envelope.turn, command=command, listed={**self._listed}
        )
        if not command.aside:
            try:
                talk.encoded.ask(command.new, command.mode)
            except ValueError:
                # The trace lacks a part of the conversation, or has a placeholder in place of a call's id.
                talk.whole = False
                talk.encoded.history.forget()

    def _adopt_asked(self, cause: int) -> _Prompted | None:
        asked = self._asked.get(cause)
        talk = None if asked is None else self._talks.get(asked.command.conversation)
        if talk is not None:
            self._adopt(talk)
        return talk

    def _adopt(self, talk: _Prompted) -> None:
        """If the profile or the model has changed, encode the conversation anew, as the LLM actor does."""
        form, encoded = self._form, talk.encoded
        if (encoded.profile, encoded.model) == (form.profile, form.model):
            return
        talk.adapted = form.cause
        encoded.adopt(form.profile, form.model)
        _blame(talk, form.cause)

    def _rewrite(self, body: m.HistoryRewritten | m.RewriteHistory, place: _Place) -> None:
        self.left_out = 0
        talk = self._talks.get(body.conversation)
        if talk is None:
            return
        history = talk.encoded.history
        try:
            if isinstance(body, m.RewriteHistory):
                before = [*history.entries]
                talk.encoded.change(body.change)
                if isinstance(body.change, m.Shortened) and history.entries != before:
                    self.left_out = len(before) - len(history.entries) + 1
            else:
                talk.encoded.rewrite(body.rewrite)
        except ValueError:
            talk.whole = False  # the trace lacks the messages that were changed
        _blame(talk, place)

    def _learn(self, changed: m.JsonObject, place: _Place) -> None:
        """Apply a change of the wire profile, which the LLM actor has reported in the message at `place`."""
        profile = with_fields(self._form.profile, changed)
        self._form = _Form(_unmarked(profile), self._form.model, place)

    def _ended(
        self, asked: _Asked | None, body: m.CompletionReceived | m.ReplyDropped, seq: int
    ) -> CachedPrompt | None:
        talk = None if asked is None else self._talks.get(asked.command.conversation)
        if asked is None or talk is None:
            return None
        command = asked.command
        encoded = talk.encoded.aside(command.new, command.mode) if command.aside else talk.encoded
        sent = self._sent(asked, talk, encoded)
        prompt = self._compared(asked, talk, sent, body, seq)
        if not command.aside:
            if talk.last is None and talk.run is not None:
                self._heads[sent.model] = sent
            talk.sent[bool(sent.parts[0])] = talk.last = sent
            talk.blame, talk.notes, talk.adapted = [], [], None
        if isinstance(body, m.CompletionReceived) and not command.aside:
            kept = m.AssistantReply(content=body.content, tool_calls=body.tool_calls, echo=body.echo)
            talk.encoded.history.keep(kept)
        self._forget_sampling(talk.name)
        return prompt

    def _forget_sampling(self, name: m.ConversationId) -> None:
        """If `name` is the conversation of a server's sampling, forget it: the id may be used again."""
        if name in self._talks and self._talks[name].run is None:
            del self._talks[name]

    def _dropped(self, body: m.ReplyDropped, envelope: Any) -> _Asked | None:
        """Remove a dropped reply from its conversation. Return its request; `None`: it had ended before."""
        talk = self._talks.get(self._dropping.pop(envelope.cause or 0, m.ConversationId("")))
        if talk is not None:
            talk.encoded.history.forget()
        key = (envelope.turn, body.request)
        seq = next((seq for seq, a in self._asked.items() if (a.turn, a.command.request) == key), 0)
        return self._asked.pop(seq, None)

    def _sent(self, asked: _Asked, talk: _Prompted, encoded: EncodedConversation) -> _Sent:
        prompt = encoded.prompt
        head = len(prompt.tools) + len(prompt.system) + _system_bytes(encoded, prompt.messages)
        asks = talk.asks
        return _Sent(
            seq=asked.seq,
            at=asked.at,
            model=encoded.model if asks is None else f"{asks.model} at {asks.address}",
            run=talk.run,
            whole=b"".join(prompt),
            head=head,
            tools=encoded.tools if prompt.tools else (),
            parts=(len(prompt.tools), len(prompt.system)),
        )

    def _compared(self, asked: _Asked, talk: _Prompted, sent: _Sent, body: Any, reply: int) -> CachedPrompt:
        earlier = self._nearest(talk, sent)
        same = 0 if earlier is None else _in_common(earlier, sent)
        usage = body.usage
        # Do not use `usage.input_tokens`: it counts all tries, and is estimated if the endpoint reports none.
        counted = body.prompt_tokens if isinstance(body, m.CompletionReceived) else 0
        found = CachedPrompt(
            seq=asked.seq,
            reply=reply,
            turn=asked.turn,
            request=asked.command.request,
            conversation=talk.name,
            model=sent.model,
            prompt_bytes=len(sent.whole),
            repeated_bytes=same,
            compared_with=None if earlier is None else earlier.seq,
            after_s=0.0 if earlier is None else round(asked.at - earlier.at, 6),
            input_tokens=counted,
            cached_tokens=min(usage.cached_tokens, counted) if counted else 0,
            whole=talk.whole,
        )
        if earlier is None:
            return found
        # If `talk.last` is `None`, `earlier` is of another conversation: compare only tools and system text.
        shared, ends = (len(earlier.whole), len(sent.whole)) if talk.last else (earlier.head, sent.head)
        if same >= shared:
            return found
        per_token = len(sent.whole) / counted if counted and talk.whole else ContextPolicy().bytes_per_token
        tokens = max(0, round((min(shared, ends) - same) / per_token))
        return replace(found, broken=_PromptPair(earlier, sent, same, talk, asked).told(tokens))

    def _nearest(self, talk: _Prompted, sent: _Sent) -> _Sent | None:
        """Return the earlier prompt to compare `sent` with, or `None`."""
        # Of the conversation's last prompt with tools and its last one without: the prompt that has the
        # longer beginning in common with `sent`. For a conversation's first prompt: the latest first prompt
        # of another conversation to the same model; `None` for sampling, or if the trace lacks messages.
        if talk.last is None:
            return self._heads.get(sent.model) if talk.run is not None and talk.whole else None
        return max(talk.sent.values(), key=lambda each: (_in_common(each, sent), each.seq))

    def _end(self, name: m.ConversationId, end: m.TurnCompleted | m.TurnFailed) -> None:
        talk = self._talks.get(name)
        if talk is None:
            return
        for late in [seq for seq, asked in self._asked.items() if asked.command.conversation == name]:
            del self._asked[late]
        if talk.run is not None and talk.run.history is None:
            del self._talks[name]  # this was a turn outside conversations: no later turn continues it
            return
        try:
            talk.encoded.close(end)
        except ValueError:
            talk.whole = False  # a secret in a call's id was redacted, or the trace is damaged
        while len(self._talks) > _MOST_KEPT:
            del self._talks[next(iter(self._talks))]


def _blame(talk: _Prompted, place: _Place) -> None:
    """Add `place` to `blame` if the encoded messages do not begin with those of the last prompt any more."""
    last = talk.last
    if last is not None:
        messages = last.whole[sum(last.parts) :]
        same = common_bytes(messages, talk.encoded.prompt.messages)
        if same < len(messages):
            talk.blame.append((same, *place))


def _stands_at(talk: _Prompted, past: m.HistoryReference) -> bool:
    ledger = talk.encoded.history.ledger
    if ledger is None or ledger.length != past.length:
        return False
    return ledger.digest == past.digest or (talk.redacted and talk.name == past.conversation)


def _unmarked(profile: WireProfile) -> WireProfile:
    return replace(profile, cache_markers=0, given_cache_markers=0)


def _system_bytes(encoded: EncodedConversation, messages: bytes) -> int:
    """Return how many bytes of the encoded `messages` are the system text."""
    first = encoded.history.entries[0] if encoded.history.entries else None
    texts = (
        [item for item in first.items if isinstance(item, m.SystemText)] if isinstance(first, m.Said) else []
    )
    if not texts:
        return 0
    alone = EncodedConversation(encoded.profile, model=encoded.model)
    alone.ask(texts, m.RequireAnswer())
    return common_bytes(alone.prompt.messages, messages)


def _in_common(earlier: _Sent, sent: _Sent) -> int:
    # Models do not share their caches.
    return common_bytes(earlier.whole, sent.whole) if earlier.model == sent.model else 0


def common_bytes(left: bytes, right: bytes) -> int:
    """Return how many bytes `left` and `right` have in common at their beginning."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class _PromptPair(Struct, frozen=True):
    """Two prompts whose first `same` bytes are equal. `sent` is the prompt of request `asked` in `talk`."""

    earlier: _Sent
    sent: _Sent
    same: int
    talk: _Prompted
    asked: _Asked

    def told(self, tokens: int) -> PrefixBreak:
        part = self._part
        before, now = (_excerpt(each.whole, self.same) for each in (self.earlier, self.sent))
        match part:
            case "model":
                one, other = (printable(each.model, 100) for each in (self.earlier, self.sent))
                place, why = "the whole prompt", (*self.talk.moved, f"{one} was asked before, now {other}")
                before = now = ""
            case "tools":
                place, why = self._changed_tool()
            case "system":
                place, why = "the system text", self._changed_system()
            case "messages":
                place, why = self._message(), self._changed_messages()
        return PrefixBreak(
            part=part,
            at_byte=self.same,
            place=place,
            before=before,
            now=now,
            cause=why[0],
            cause_kind=why[1],
            why=why[2],
            tokens=tokens,
        )

    @property
    def _part(self) -> PromptPart:
        if self.earlier.model != self.sent.model:
            return "model"
        fewest, most = sorted((self.earlier.parts[0], self.sent.parts[0]))
        are_others = self.earlier.tools != self.sent.tools or bool(fewest) != bool(most)
        if self.same < (most if are_others else fewest):
            return "tools"
        heads = (self.earlier.head, self.sent.head)
        return "system" if self.same < (max if self._one_has_system else min)(heads) else "messages"

    @property
    def _one_has_system(self) -> bool:
        return (self.earlier.head > self.earlier.parts[0]) != (self.sent.head > self.sent.parts[0])

    def _by_turn(self, why: str) -> _Why:
        begun = (seq for seq, kind, _ in self.talk.notes if kind == "RunTurn")
        return next(begun, self.asked.seq), "RunTurn", why

    def _by_request(self, why: str) -> _Why:
        return self.asked.seq, "RequestCompletion", why

    def _changed_system(self) -> _Why:
        if self.talk.blame:
            return self._changed_messages()
        if self._one_has_system:
            return self._by_turn("of this conversation and the one before, only one has a system text")
        return self._by_turn("the system text is another one than in the conversation before")

    def _changed_messages(self) -> _Why:
        if self.talk.blame:
            _, cause, kind = min(self.talk.blame)
            return cause, kind, _REWRITTEN.get(kind, "what was said before is written in another form")
        if self.asked.command.aside:
            return self._by_request("the request is made beside the conversation")
        return self._by_turn("the turn goes on from another place in the conversation")

    def _changed_tool(self) -> tuple[str, _Why]:
        old, new = self.earlier.tools, self.sent.tools
        if not new:
            return "having no tools", self._why_no_tools()
        if not old:
            why = "tools are offered, and the request before offered none"
            return f"the tool {_name(new[0])}", self._listing(new[0], why)
        before, now = {tool.name: tool for tool in old}, {tool.name: tool for tool in new}
        pairs = enumerate(zip(old, new, strict=False))
        differ = (at for at, (a, b) in pairs if a.name != b.name or _how_changed(a, b))
        at = next(differ, min(len(old), len(new)))
        if at == len(old) == len(new):
            cause, kind = self.talk.adapted or (self.asked.seq, "RequestCompletion")
            return "the tools", (cause, kind, "the tools are written in another form")
        if at < len(new) and new[at].name not in before:
            tool, how = new[at], "is offered, and was not before"
        elif at < len(old) and old[at].name not in now:
            tool, how = old[at], "is not offered any more"
        elif at < min(len(old), len(new)) and old[at].name == new[at].name:
            tool, how = new[at], _how_changed(old[at], new[at])
        else:  # another order or, in a damaged trace, a request that has a tool twice
            tool, how = (new[at:] or old[at:])[0], "is offered in another order"
        return f"the tool {_name(tool)}", self._listing(tool, f"{_name(tool)} {how}")

    def _why_no_tools(self) -> _Why:
        if self.asked.command.aside:
            return self._by_request("a summary is asked for, and that offers no tools")
        for kinds in (("FinalForced", "RepairRequested"), ("McpDisabled",), ("RunTurn",)):
            found = [note for note in self.talk.notes if note[1] in kinds]
            if found:
                cause, kind, why = found[-1]
                return cause, kind, why if kind == "RunTurn" else f"{why}, and no tools are offered"
        return self._by_request("no tools are offered")

    def _listing(self, tool: m.ToolDefinition, why: str) -> _Why:
        before, now = self.earlier.run, self.sent.run
        if before is not None and now is not None and before is not now:
            wanted = before.tools != now.tools
            if wanted or (tool.server in before.servers) != (tool.server in now.servers):
                return self._by_turn(f"{why}: the turn wants other tools")
        return *self.asked.listed.get(tool.server, (self.asked.seq, "RequestCompletion")), why

    def _message(self) -> str:
        begin = sum(self.sent.parts)
        try:
            messages = msgspec.json.decode(b"[" + self.sent.whole[begin:] + b"]", type=list[msgspec.Raw])
        except msgspec.DecodeError:
            return "a message"
        end = begin
        for number, message in enumerate(messages, 1):
            end += len(bytes(message)) + 1
            if self.same < end:
                fields = msgspec.json.decode(message)
                role = fields.get("role", fields.get("type", "")) if isinstance(fields, dict) else ""
                role = printable(str(role), 30)
                return f"message {number}{role and f' ({role})'}"
        return f"message {len(messages) + 1}, which is not there any more"


_REWRITTEN = {
    "HistoryRewritten": "what was said before was rewritten",
    "RewriteHistory": "what was said before was rewritten",
    "SchemaIgnored": "the prompt states the answer's schema in words from now on",
    "RunTurn": "another model or endpoint is asked",
    "ModelPassedOver": "another model or endpoint is asked",
}


def _how_changed(old: m.ToolDefinition, new: m.ToolDefinition) -> str:
    if old.description != new.description:
        return "has another description"
    if old.input_schema != new.input_schema:
        return "has other arguments"
    if msgspec.json.encode(old.input_schema) != msgspec.json.encode(new.input_schema):
        return "has the keys of its schema in another order"
    return ""


def _name(tool: m.ToolDefinition) -> str:
    return printable(tool.name, 100)


def _excerpt(whole: bytes, at: int) -> str:
    return printable(
        whole[max(0, at - _AROUND) : at - _AROUND + _EXCERPT].decode("utf-8", "replace"), _EXCERPT
    )


class CacheTotals(Struct, frozen=True, kw_only=True):
    """The sums over the prompts of a trace."""

    requests: int = 0  # how many were answered by an endpoint, or dropped
    breaks: int = 0  # how many of these have a `PrefixBreak`
    input_tokens: int = 0
    repeated_tokens: int = 0  # about how many of the input tokens repeat an earlier prompt
    cached_tokens: int = 0  # how many of the input tokens were reported as read from a cache
    paid_again: int = 0  # the sum of `PrefixBreak.tokens`


class CacheReport(Struct, frozen=True, kw_only=True):
    """A trace's answered or dropped requests, in the order of their ends, and the totals."""

    episode: str
    prompts: tuple[CachedPrompt, ...]
    totals: CacheTotals


def cache_report(episode: str, envelopes: Iterable[Any]) -> CacheReport:
    """Return the prompts of a trace, each compared with an earlier prompt, and the totals."""
    prompts = tuple(cached_prompts(envelopes))
    broken = [each.broken for each in prompts if each.broken is not None]
    totals = CacheTotals(
        requests=len(prompts),
        breaks=len(broken),
        input_tokens=sum(each.input_tokens for each in prompts),
        repeated_tokens=sum(each.repeated_tokens for each in prompts),
        cached_tokens=sum(each.cached_tokens for each in prompts),
        paid_again=sum(each.tokens for each in broken),
    )
    return CacheReport(episode=episode, prompts=prompts, totals=totals)


def cached_prompts(envelopes: Iterable[Any]) -> Iterator[CachedPrompt]:
    """Yield the answered or dropped requests of a trace, each when its end is read; copies are left out."""
    return filter(None, map(CachedPrompts().see, envelopes))


def told(prompt: CachedPrompt) -> str:
    """Return where and why a prompt differs from the earlier one; empty if `prompt.broken` is `None`."""
    broken = prompt.broken
    if broken is None:
        return ""
    return (
        f"request {prompt.request} of turn {prompt.turn} (message {prompt.seq}) repeats {broken.at_byte}"
        f" bytes of message {prompt.compared_with} and differs in {broken.place}: {broken.why}"
        f" ({broken.cause_kind}, message {broken.cause}); about {broken.tokens} tokens are paid again"
    )
