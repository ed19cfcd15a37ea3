"""What grue does with the errors that providers write, and docs/provider-errors.md, the table of them.

    python tools/compat/provider_errors.py      write the page

The errors are in tests/unit/protocol/chat_wire/provider_errors.jsonl, one a line, each with the reason
that it has and with what has to follow. A test compares both with what grue does.
"""

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import httpx

from grue.messages import CompletionRetried, LlmFailure
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.failures import Fault, describe, fault_of_status
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.profiles import profile_for
from grue.protocol.chat_wire.wire_format import Reply
from grue.protocol.retry import RetryPolicy
from grue.protocol.turn.completion_attempts import (
    AdaptProfile,
    RequestFailed,
    Sent,
    attempt_step,
)
from grue.transports.llm.exchange import Connection, Connections, Streamed, exchange

Row = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/unit/protocol/chat_wire/provider_errors.jsonl"
PAGE = ROOT / "docs/provider-errors.md"
NOW = 1_795_435_200.0
"""2026-11-23, 12:00 UTC, when the errors came that name a time of day."""

_URL = "http://llm.test/v1"
_MOST_SHOWN = 150
_HEAD = """\
# Errors of providers

This page lists {count} errors of {providers} providers and model servers, and what grue does when it gets
them. `python tools/compat/provider_errors.py` writes the page from
`tests/unit/protocol/chat_wire/provider_errors.jsonl`. That file has each error in full, and what grue should
do with it. grue does that for {right} of the {count}.

`reason` is the word in `LLMError.reason` ([each explained](errors.md#why-a-model-was-not-reached)). The
last column says whether grue sends the request again:

- *no*: the completion fails at once.
- *after N s*: grue first waits for the time that the reply names in a header or in its text.
- *with backoff*: grue first waits 1, 2, 4, … seconds, as `RetryPolicy` says.
- *at once, changed*: grue omits the field that the endpoint refuses, replaces images by a line of text,
  requests a stream, or uses another wire format.

If the reply asks for a wait of more than ten minutes (`RetryPolicy.max_asked_delay_s`), grue does not wait:
the completion fails, and `LLMError.retry_after_s` has the wait in seconds.
"""
_TABLE = """
## {provider}
| HTTP status | text of the error | `reason` | does grue send the request again? |
|---|---|---|---|
"""


def rows() -> list[Row]:
    """Return the errors, with what is wanted of each."""
    return [json.loads(line) for line in FIXTURES.read_text(encoding="utf-8").splitlines()]


def done_with(row: Row) -> Row:
    """Return what grue does with an error, in the terms of the file, and how it words it."""
    return anyio.run(_all_done_with, [row])[0]


@functools.cache
def _done() -> list[Row]:
    """Return what grue does with each error, at the time of the file."""
    kept = time.time
    time.time = lambda: NOW
    try:
        return anyio.run(_all_done_with, rows())
    finally:
        time.time = kept


async def _all_done_with(errors: list[Row]) -> list[Row]:
    return [await _done_with(row, profile_for(_URL, "m", row.get("wire"))) for row in errors]


def differences() -> list[str]:
    """Return a line for each error with which grue does something else than what is wanted."""
    found = []
    for number, (row, done) in enumerate(zip(rows(), _done(), strict=True), start=1):
        told = {key: value for key, value in done.items() if key != "words"}
        wanted = {key: row.get(key) for key in told}
        if told != wanted:
            found.append(
                f"{number} {row['provider']} {row['status']}: {told}, not {wanted}: {row['body'][:200]}"
            )
    return found


async def _done_with(row: Row, profile: WireProfile) -> Row:
    fault = await _fault_of(row, profile)
    failure = describe(fault, base_url=_URL, model="m", profile=profile)
    window = failure.overflow.window_tokens if failure.overflow else None
    prompt = failure.overflow.prompt_tokens if failure.overflow else None
    again = _again(fault, failure, profile)
    sizes = {"window": window, "prompt": prompt}
    return {"reason": failure.reason, "again": again, **sizes, "words": failure.message}


async def _fault_of(row: Row, profile: WireProfile) -> Fault:
    stream = row["body"].startswith(("data:", "event:", ":"))
    kind = {"content-type": "text/event-stream" if stream else "application/json"}
    reply = httpx.Response(row["status"], headers={**kind, **row["headers"]}, text=row["body"])
    transport = httpx.MockTransport(lambda _: reply)
    connections = Connections(lambda: Connection(https=False, transport=transport))
    request = httpx.Request("POST", f"{_URL}/chat/completions", content=b"{}")
    streamed = Streamed(FORMATS[profile.wire].assembler(), lambda _: None) if stream else None
    answer = await exchange(connections, request, RetryPolicy(), streamed)
    if isinstance(answer, Fault):
        return answer
    if not 200 <= answer.status < 300:
        return fault_of_status(answer.status, answer.body, answer.location, answer.retry_after_s, time.time())
    read = EncodedConversation(profile, model="m").read(answer.body, request=1, used_ids=frozenset())
    assert not isinstance(read, Reply), row
    return read


def _again(fault: Fault, failure: LlmFailure, profile: WireProfile) -> str | float:
    state = Sent(request=1, settings=ModelSettings(model="m"), retry=RetryPolicy())
    _, commands = attempt_step(state, RequestFailed(fault=fault, failure=failure, profile=profile))
    if any(isinstance(command, AdaptProfile) for command in commands):
        return "adapted"
    waits = [command.delay_s for command in commands if isinstance(command, CompletionRetried)]
    if not waits:
        return "no"
    return "backoff" if failure.retry_after_s is None else round(waits[0], 6)


def page() -> str:
    """Return the page of all errors."""
    known = [{**row, "words": done["words"]} for row, done in zip(rows(), _done(), strict=True)]
    providers = list(dict.fromkeys(_provider(row) for row in known))
    text = _HEAD.format(count=len(known), providers=len(providers), right=len(known) - len(differences()))
    for provider in providers:
        text += _TABLE.format(provider=provider)
        text += "".join(map(_line, (row for row in known if _provider(row) == provider)))
    return text


def _provider(row: Row) -> str:
    return str(row["provider"]).partition(" (")[0].removesuffix(" stream").removesuffix(" Responses")


def _line(row: Row) -> str:
    words = row["words"]
    said = (
        (words if len(words) <= _MOST_SHOWN else f"{words[:_MOST_SHOWN]}…")
        .replace("|", "\\|")
        .replace("<", "&lt;")
    )
    again = row["again"]
    told = (
        {"no": "no", "adapted": "at once, changed", "backoff": "with backoff"}.get(again)
        if isinstance(again, str)
        else None
    )
    stream = ", in a stream" if row["body"].startswith(("data:", "event:", ":")) else ""
    return f"| {row['status']}{stream} | {said} | `{row['reason']}` | {told or f'after {again:g} s'} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write("".join(f"{line}\n" for line in differences()))
