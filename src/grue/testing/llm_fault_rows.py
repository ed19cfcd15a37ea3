"""Rows of the fault matrix where the model's endpoint fails: it is silent, it breaks off, it talks nonsense.

A row is a list of replies and what has to come of it. Settings and the request say in which wire format, and
whether the reply is streamed; what holds in each format is in `_in_format` and `_streamed`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from grue.errors import LLMError, MCPError
from grue.llm_transport.endpoint import LlmSettings
from grue.messages import CompletionRetried, TextDelta
from grue.protocol.retry import RetryPolicy
from grue.runner import Runner, TurnRequest
from grue.runtime.trace import Envelope, Recorder
from grue.testing.fault_turns import LIFETIMES, Fault, Seen
from grue.testing.llm_faults import (
    broken_off,
    compressed,
    dripping,
    empty,
    error_in_200,
    error_in_stream,
    garbage_in_stream,
    in_place_of_json,
    mistyped,
    rate_limited,
    redirect,
    reset,
    stalled,
    truncated,
    web_page,
)
from grue.testing.llm_server import (
    LlmReply,
    ScriptedLlmServer,
    error_reply,
    hang_up,
    silence,
    text_reply,
)

SOUND = text_reply("The lamp is lit, and it is a very good lamp indeed.")
KEY = "sk-made-up-for-the-fault-matrix"

PATIENT = RetryPolicy(max_retries=1, initial_delay_s=0.01, max_delay_s=0.05, jitter_factor=0, timeout_s=5)
HASTY = RetryPolicy(max_retries=1, initial_delay_s=0.01, max_delay_s=0.05, jitter_factor=0, timeout_s=0.5)
"""For replies that do not come to an end."""

_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
_NOBODY_LISTENS = "http://127.0.0.1:1/v1"


def an_llm_turn(fault: Fault) -> Seen:
    """Run a turn without tools whose model's endpoint says what the fault says.

    The outcome of a turn that fails is the error's name and kind. The notes are the kinds of failures that
    were tried again, the format of the requests, and `streamed`.
    """
    notes: set[str] = set()

    def keep(envelope: Envelope[Any], line: bytes) -> None:
        del line
        if isinstance(envelope.body, CompletionRetried):
            notes.add(envelope.body.failure.kind)

    recorder = Recorder()
    recorder.add(keep)
    asked = {"system": "Be brief.", "user": "Go on.", "turn_timeout_s": fault.turn_s, **fault.request}
    with ScriptedLlmServer(fault.replies) as llm:
        known = {"base_url": llm.base_url, "model": "scripted", "api_key": KEY, "retry": PATIENT}
        settings = LlmSettings(**{**known, **fault.settings})
        with Runner(llm=settings, recorder=recorder, **LIFETIMES[fault.mode]) as runner:
            try:
                answered = runner.run_turn(TurnRequest[str](**asked))
                outcome, text = str(answered.kind), answered.response
            except MCPError as error:
                outcome, text = _ended_by(error), str(error)
        for request in llm.requests:
            notes |= {request.dialect, *(["streamed"] if request.body.get("stream") else [])}
    return Seen(outcome=outcome, text=text, notes=frozenset(notes))


def _ended_by(error: MCPError) -> str:
    if KEY in str(error):
        return "the key was told"
    return f"LLMError {error.kind}" if isinstance(error, LLMError) else type(error).__name__


def _llm(name: str, *replies: LlmReply, outcome: str = "answered", **more: Any) -> Fault:
    """An endpoint that says these things, one after the other."""
    said = more.pop("says", ("lamp",) if outcome == "answered" else ())
    return Fault(
        name=f"llm-{name}",
        replies=replies,
        outcome=outcome,
        says=said,
        drive=an_llm_turn,
        modes=("turn", "episode"),
        **more,
    )


def _again(name: str, reply: LlmReply, kind: str, **more: Any) -> Fault:
    """An endpoint that fails once, which is tried again as a failure of this kind, and then answers."""
    notes = frozenset([kind]) | more.pop("notes", frozenset())
    return _llm(f"{name}-once", reply, SOUND, notes=notes, **more)


def _hangs(name: str, reply: LlmReply) -> Sequence[Fault]:
    """An endpoint whose reply does not come to an end, once, or whenever it is asked."""
    hasty = {"retry": HASTY}
    words = ("no complete reply within 0.5 s",)
    return (
        _again(name, reply, "timed_out", settings=hasty),
        _llm(name, reply, reply, outcome="LLMError timed_out", settings=hasty, says=words),
    )


PLAIN: Sequence[Fault] = (
    _llm("well-behaved", SOUND),
    _llm("wrong-content-type", mistyped(SOUND)),
    _llm("slow-drip", dripping(SOUND, size=16, every_s=0.01)),
    *_hangs("silent", silence()),
    *_hangs("stalls-in-body", stalled(SOUND)),
    *_hangs("drips-for-ever", dripping(SOUND, size=1, every_s=0.2)),
    _llm(
        "silent-beyond-the-turn",
        silence(),
        outcome="TurnTimedOut",
        settings={"retry": RetryPolicy(timeout_s=60)},
        turn_s=0.5,
        says=("0.5 s",),
        within_s=2.0,
    ),
    _llm(
        "nobody-listens",
        outcome="LLMError unreachable",
        settings={"base_url": _NOBODY_LISTENS},
        says=("cannot connect",),
        notes=frozenset(["unreachable"]),
    ),
    _again("hangs-up", hang_up(), "unavailable"),
    _again("breaks-off", broken_off(SOUND), "unavailable"),
    _again("resets", reset(), "unavailable"),
    _again("resets-in-body", reset(SOUND, after=0.5), "unavailable"),
    _llm("resets-always", reset(), reset(), outcome="LLMError unavailable", says=("the connection broke",)),
    _again("truncated-json", truncated(SOUND), "invalid_reply"),
    _llm("truncated-json", truncated(SOUND), truncated(SOUND), outcome="LLMError invalid_reply"),
    _again("empty-body", empty(), "invalid_reply"),
    _llm(
        "compressed-again-and-again",
        *[compressed(SOUND, stages=3)] * 2,
        outcome="LLMError invalid_reply",
        says=("compressed 3 times",),
    ),
    _llm("compressed", compressed(SOUND)),
    _llm(
        "compressed-without-end",
        *[compressed(text_reply(" " * 20_000_000), stages=2)] * 2,
        outcome="LLMError invalid_reply",
        says=("the reply is longer than",),
    ),
    _again("digits-without-end", in_place_of_json(b'{"choices": ' + b"9" * 5_000 + b"}"), "invalid_reply"),
    _again("nested-without-end", in_place_of_json(b'{"error": ' + b"[" * 50_000), "invalid_reply"),
    _llm("web-page", web_page(), web_page(), outcome="LLMError invalid_reply", says=("base URL",)),
    _again("bad-gateway-page", web_page(502), "unavailable"),
    _llm(
        "bad-gateway-page",
        *[web_page(502, "No upstream")] * 2,
        outcome="LLMError unavailable",
        says=("No upstream",),
    ),
    _again("error-in-200", error_in_200("Upstream is down.", 502), "unavailable"),
    _llm(
        "no-credit-in-200",
        error_in_200("Insufficient credits.", 402),
        outcome="LLMError refused",
        says=("Insufficient credits.",),
    ),
    _again("rate-limit", rate_limited(), "unavailable"),
    _again("rate-limit-in-seconds", rate_limited(30), "unavailable"),
    _again("rate-limit-by-date", rate_limited(_LONG_AGO), "unavailable"),
    _llm(
        "rate-limit-always",
        *[rate_limited(1)] * 2,
        outcome="LLMError unavailable",
        says=("Rate limit exceeded", "429"),
    ),
    _llm(
        "spending-limit",
        rate_limited(1, "You exceeded your current quota."),
        outcome="LLMError refused",
        says=("current quota", "credit"),
    ),
    _llm(
        "repeats-the-key",
        error_reply(401, f"Incorrect API key provided: {KEY}."),
        outcome="LLMError refused",
        says=("Incorrect API key provided: [redacted:api_key]",),
    ),
    _llm(
        "redirects",
        redirect("http://127.0.0.1:1/elsewhere"),
        outcome="LLMError refused",
        says=("redirects to http://127.0.0.1:1/elsewhere",),
    ),
)
"""Chat completions, whole: tried again where that can help, told in its words where it cannot."""


def _in_format(label: str, wire: str) -> Sequence[Fault]:
    """The same in another wire format."""
    more: dict[str, Any] = {"settings": {"wire": wire}, "notes": frozenset([label])}
    return (
        _llm(f"{label}-well-behaved", SOUND, **more),
        _again(f"{label}-resets-in-body", reset(SOUND, after=0.5), "unavailable", **more),
        _again(f"{label}-truncated-json", truncated(SOUND), "invalid_reply", **more),
        _again(f"{label}-error-in-200", error_in_200("Upstream is down."), "unavailable", **more),
        _again(f"{label}-rate-limit", rate_limited(1), "unavailable", **more),
        _llm(f"{label}-web-page", web_page(), web_page(), outcome="LLMError invalid_reply", **more),
    )


def _streamed(label: str, wire: str) -> Sequence[Fault]:
    """A stream that is listened to: what breaks it is tried again from its beginning."""
    live = {"request": {"on_delta": _unheard}, "notes": frozenset([label, "streamed"])}
    more: dict[str, Any] = {"settings": {"wire": wire}, **live}
    impatient = {**more, "settings": {"wire": wire, "retry": replace(PATIENT, idle_timeout_s=0.5)}}
    timed_out = {"outcome": "LLMError timed_out", **impatient}
    return (
        _llm(f"{label}-stream-well-behaved", SOUND, **more),
        _llm(f"{label}-stream-drips", dripping(SOUND, size=64, every_s=0.002), **more),
        _again(f"{label}-stream-with-garbage", garbage_in_stream(SOUND), "damaged", **more),
        _llm(
            f"{label}-stream-with-garbage",
            *[garbage_in_stream(SOUND)] * 2,
            outcome="LLMError damaged",
            says=("the stream is damaged", "is not JSON"),
            **more,
        ),
        _again(f"{label}-stream-not-utf-8", garbage_in_stream(SOUND, b"data: {\xe9}\n\n"), "damaged", **more),
        _again(f"{label}-stream-stalls", stalled(SOUND), "timed_out", **impatient),
        _llm(f"{label}-stream-stalls", stalled(SOUND), stalled(SOUND), **timed_out),
        _again(f"{label}-stream-resets", reset(SOUND, after=0.5), "unavailable", **more),
        _again(f"{label}-stream-ends-early", truncated(SOUND), "unavailable", **more),
        _again(f"{label}-stream-error", error_in_stream(SOUND), "unavailable", **more),
    )


def _unheard(delta: TextDelta) -> None:
    """Listen, so that replies are streamed."""
    del delta


LLM_FAULTS: Sequence[Fault] = (
    *PLAIN,
    *_in_format("responses", "responses"),
    *_in_format("messages", "messages"),
    *_streamed("chat", "chat_completions"),
    *_streamed("responses", "responses"),
    *_streamed("messages", "messages"),
)
"""Every row."""
