"""The lines that a chat prints, with unprintable characters of untrusted texts replaced, and its commands."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from grue import messages as m
from grue.cli.live_story import BOLD, CYAN, Line, in_one_line
from grue.hosts.agent_loop import ToolEnded, ToolStarted
from grue.policies import ApprovalQuestion
from grue.protocol.turn.prices import Spent
from grue.runtime.safe_text import ELLIPSIS, printable
from grue.tracing.facts import counted
from grue.tracing.message_words import DIM, GREEN, RED, YELLOW
from grue.tracing.stats_table import duration, size

COMMANDS = {
    "/tools": "[WORD]: list the tools; a whole name shows its schema",
    "/trace": "[TURN]: show the messages of a turn, by default the last",
    "/save": "FILE: write the conversation to a new file, .md to read it, .jsonl to load it",
    "/model": "[NAME]: show the model, or ask another one of the endpoint from now on",
    "/cost": "show what the model has cost so far",
    "/undo": "take back the last turn; what its tool calls have done remains",
    "/help": "show this",
    "/quit": "leave",
}
_KEYS = (
    "Enter sends. Alt-Enter or a backslash before Enter begins a new line. Tab completes commands and"
    " tools. Up and Ctrl-R find what was typed. Ctrl-C stops a turn, Ctrl-D leaves. To send a text that"
    " begins with a slash, type a space before it."
)

_NAME_CHARS = 80
_CALL_CHARS = 300
_RESULT_CHARS = 240
_QUESTION_CHARS = 2000
_DESCRIPTION_CHARS = 2000
_SCHEMA_CHARS = 4000
_READ_CHARS = 100_000  # the most characters of each part of a result that are read and counted


def started(event: ToolStarted) -> Line:
    """Return the line for a call that is being made."""
    arguments = printable(f" {_json(event.arguments)}", _CALL_CHARS) if event.arguments else ""
    return Line(arguments, DIM, "    ", f"  {_name(event.name)}", CYAN)


def ended(event: ToolEnded) -> Line:
    """Return the line for a call that has ended or was not made."""
    why = printable(event.result.error_message or "", _RESULT_CHARS)
    if event.duration_s is None:
        return Line(f"  ! {_name(event.name)} was not called: {why}", YELLOW, "    ")
    lasted = duration(event.duration_s)
    if event.result.is_error:
        return Line(f"    {lasted}, failed: {why}", RED, "      ")
    return Line(f"    {lasted}: {result_words(event.result)}", DIM, "      ")


def result_words(result: m.ToolCallResult) -> str:
    """Return a tool result as one short printable line; an image becomes its type and size."""
    parts = [*_parts(result.content), *(_block(block) for block in result.blocks)]
    text = printable(" ".join(part for part in parts if part), _RESULT_CHARS) or "nothing"
    total = sum(map(len, parts))
    if text.endswith(ELLIPSIS) and total > _RESULT_CHARS:
        length = f"{total:,} characters" if total < _READ_CHARS else f"over {_READ_CHARS:,} characters"
        return f"{text} ({length})"
    return text


def question_lines(question: ApprovalQuestion, rows: Iterable[str]) -> Iterator[Line]:
    """Yield what a person reads before approving a call. `rows` are the call's arguments, printable."""
    yield Line(f"The model wants to call {printable(question.name)}", YELLOW)
    for row in rows:
        yield Line(f"  {row}", "", "  ")
    if question.reason:
        yield Line(f"  {printable(question.reason, _CALL_CHARS)}", DIM, "  ")


def request_lines(server: str, message: str) -> Iterator[Line]:
    """Yield the lines of a question that a server asks the user."""
    yield Line(f"The tool server {printable(server, _NAME_CHARS)} asks you:", YELLOW)
    yield Line(f"  {printable(message, _QUESTION_CHARS)}", "", "  ")


def tool_lines(tools: Sequence[m.ToolDefinition], wanted: str) -> Iterator[Line]:
    """Yield the tool `wanted` with its schema, or a line for each tool whose name contains `wanted`."""
    found = [tool for tool in tools if wanted.casefold() in tool.name.casefold()]
    exact = [tool for tool in found if tool.name in (wanted, f"mcp.{wanted}")]
    if not found:
        about = f" with {printable(wanted, _NAME_CHARS)} in their names" if wanted else ""
        yield Line(f"There are no tools{about}.", DIM)
        return
    for tool in exact or found:
        text = tool.description.strip()
        if not exact:
            text = text.split("\n", 1)[0]
        limit = _DESCRIPTION_CHARS if exact else 120
        yield Line(f"  {printable(text, limit)}".rstrip(), DIM, "    ", _name(tool.name), CYAN)
    for tool in exact:
        yield Line(f"  {printable(_json(tool.input_schema), _SCHEMA_CHARS)}", "", "  ")


def cost_lines(spent: Spent, budget: str) -> Iterator[Line]:
    """Yield a line with the requests, tokens and cost so far, followed by the sentence `budget`."""
    usage = spent.usage
    requests = counted(spent.requests, "request")
    cached = f" ({usage.cached_tokens:,} from the cache)" if usage.cached_tokens else ""
    price = "the endpoint reports no cost" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    yield Line(f"{requests}, {usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out, {price}")
    if budget:
        yield Line(budget, YELLOW)


def undone_lines(first_words: str, calls: Sequence[str]) -> Iterator[Line]:
    """Yield the lines about a turn that was taken back."""
    yield Line(f"Taken back: {printable(first_words, 80)}", GREEN)
    if calls:
        names = ", ".join(_name(name) for name in dict.fromkeys(calls))
        count = "Its tool call was" if len(calls) == 1 else f"Its {len(calls)} tool calls were"
        yield Line(f"{count} made ({names}). What that has done remains.", YELLOW)


def greeting(model: str, tools: Sequence[str], *, scripted: bool) -> Iterator[Line]:
    """Yield the lines that a chat shows at its start."""
    who = f"{printable(model, _NAME_CHARS)} (a script, no LLM)" if scripted else printable(model, _NAME_CHARS)
    with_tools = ", ".join(_name(name) for name in tools) if tools else "no tools"
    yield Line(f"{who} · {with_tools}", BOLD)
    yield Line(
        "Enter sends, Alt-Enter begins a line, Ctrl-C stops a turn, Ctrl-D leaves. /help has more.", DIM
    )


def help_lines() -> Iterator[Line]:
    """Yield what `/help` shows."""
    width = max(map(len, COMMANDS))
    for name, text in COMMANDS.items():
        yield Line(f"  {text}", "", " " * (width + 2), f"{name:{width}}", CYAN)
    yield Line(_KEYS, DIM)


def complaint(text: str) -> Line:
    """Return the line for an error."""
    return Line(f"! {printable(in_one_line(text))}", RED, "  ")


def notice(text: str) -> Line:
    """Return the line for a notice."""
    return Line(printable(text), YELLOW, "  ")


def _parts(content: object) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content[:_READ_CHARS]]
    parts = content if isinstance(content, list) else []
    if parts and all(isinstance(each, Mapping) and "type" in each for each in parts):
        return [_block(block) for block in parts]
    return [_json(content)]


def _block(block: Mapping[str, Any]) -> str:
    kind = str(block.get("type"))
    if kind == "text":
        return str(block.get("text", ""))[:_READ_CHARS]
    data = block.get("data")
    if isinstance(data, str):
        mime = block.get("mimeType") or block.get("mime_type") or kind
        return f"[{mime}, {size(len(data.rstrip('=')) * 3 // 4)}]"
    resource = block.get("resource")
    inner = resource if isinstance(resource, Mapping) else block
    if isinstance(inner.get("text"), str):
        return f"[{inner.get('uri', kind)}] {inner['text'][:_READ_CHARS]}"
    return f"[{inner.get('uri', kind)}]"


def _json(value: object) -> str:
    try:
        return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)[:_READ_CHARS]
    except (TypeError, ValueError, RecursionError):
        return repr(value)[:_READ_CHARS]


def _name(name: str) -> str:
    return printable(name, _NAME_CHARS)
