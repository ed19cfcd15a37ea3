"""Rows of the fault matrix where a server sends too much, or something that no client expects.

Time limits must hold whatever arrives. A result that is too large, nested too deeply or not Unicode fails
only its own call. A tool with such a definition is left out of the listing, with a note.
"""

from collections import Counter
from collections.abc import Sequence

import hostile_server
from fault_turns import Fault, RowOutcome, run_and_summarize, runner_for
from hostile_server import FLOODS

from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

_CALL = '{"jsonrpc":"2.0","id":ID,'
_TEXT = '"content":[{"type":"text","text":"well"}]'
_ECHO = '{"name":"echo","inputSchema":{"type":"object"}}'
_DEEP = "[" * 900 + "]" * 900
_CALLS = 10_000


def drive_many_calls(fault: Fault) -> RowOutcome:
    """Run a turn whose model calls an unknown tool ten thousand times in one reply; count the settlements."""
    replies = [tool_calls_reply(*[("none.such", {})] * _CALLS), text_reply("done")]
    with ScriptedLlmServer(replies) as llm, runner_for(fault, llm, []) as runner:
        outcome, settlements, _ = run_and_summarize(fault, runner)
    counts = tuple(f"{count} {settlement}" for settlement, count in Counter(settlements).items())
    return RowOutcome(outcome=outcome, settlements=counts)


def _row(name: str, *flags: str, became: str = "returned", **more: object) -> Fault:
    fault = {"settlements": (became,), "modes": ("turn", "kept"), **more}
    return Fault(name=name, command=hostile_server.argv(*flags), **fault)  # type: ignore[arg-type]  # as named


def _flood(kind: str) -> Fault:
    return _row(f"flood-of-{kind}", "--flood", kind, became="timed_out", call_s=0.5, within_s=3.0)


def _start(name: str, *flags: str, says: str, **more: object) -> Fault:
    fault = {"settlements": (), "outcome": "MCPServerStartupError", "says": (says,), **more}
    return _row(name, *flags, **fault)  # type: ignore[arg-type]  # as named


def _said(name: str, result: str, **more: object) -> Fault:
    return _row(name, "--say", f"call={_CALL}{result}}}", **more)  # type: ignore[arg-type]  # as named


def _listed(name: str, tools: str, **more: object) -> Fault:
    said = f'list={_CALL}"result":{{"tools":[{_ECHO},{tools}]}}}}'
    return _row(name, "--say", said, says=("hi",), **more)  # type: ignore[arg-type]  # as named


FLOOD_FAULTS: Sequence[Fault] = (
    *map(_flood, FLOODS),
    _start("flood-at-initialize", "--flood", "ping", "--at", "initialize", says="no answer", startup_s=0.5),
    _start(
        "flood-at-listing", "--flood", "log", "--at", "list", says="no answer", startup_s=2.0, within_s=6.0
    ),
    _row("text-of-8-mb", "--result", "text=8000000", says=("xxxx",), within_s=5.0),
    _row("image-of-8-mb", "--result", "image=8000000", says=("iVBOR",), within_s=5.0),
    _row("rows-of-8-mb", "--result", "rows=8000000", notes=frozenset(["too_large"]), within_s=5.0),
    _row("lists-of-8-mb", "--result", "lists=8000000", notes=frozenset(["too_large"]), within_s=5.0),
    _row("blocks-of-8-mb", "--result", "blocks=8000000", notes=frozenset(["too_large"]), within_s=5.0),
    _row("rows-of-32-mb", "--result", "rows=32000000", says=("32000",), within_s=5.0),
    _row("text-of-60-mb", "--result", "text=60000000", says=("max_message_bytes",), within_s=8.0),
    _row("error-of-8-mb", "--error-text", "8000000", says=("zzzz",), within_s=5.0),
    _row("tool-of-8-mb", "--description", "8000000", settlements=(), notes=frozenset(["bad_tool"])),
    _start("listing-of-60-mb", "--description", "60000000", says="too large", within_s=8.0),
    _row(
        "id-is-true", "--say", 'call={"jsonrpc":"2.0","id":true,"result":{}}', became="timed_out", call_s=0.3
    ),
    _row("id-is-text", "--say", f'call={{"id":"ID","result":{{{_TEXT}}}}}', says=("well",)),
    _said(
        "surrogate-in-result", r'"result":{"content":[{"type":"text","text":"\ud800 odd"}]}', says=("odd",)
    ),
    _said(
        "nested-900-deep", f'"result":{{{_TEXT},"structuredContent":{{"deep":{_DEEP}}}}}', says=("nested",)
    ),
    _said("number-of-5000-digits", f'"result":{{"structuredContent":{{"n":1{"0" * 5000}}}}}', says=("1000",)),
    _said("error-that-is-deep", f'"error":{{"code":1,"message":"no","data":{_DEEP}}}', says=("no",)),
    _said("error-that-is-none", f'"error":{_DEEP}', says=("not usable",)),
    _listed("surrogate-in-name", r'{"name":"\ud800","inputSchema":{}}', notes=frozenset(["bad_tool"])),
    _listed("surrogate-in-description", r'{"name":"a","description":"\ud800","inputSchema":{}}'),
    _listed("schema-that-is-deep", f'{{"name":"a","inputSchema":{{"x":{_DEEP}}}}}'),
    _row(
        "ten-thousand-calls",
        drive=drive_many_calls,
        became=f"{_CALLS} rejected",
        within_s=10.0,
        modes=("turn",),
    ),
)
"""All rows of this module."""
