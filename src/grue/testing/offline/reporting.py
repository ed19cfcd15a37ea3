"""The scripted model of `grue run --offline`: it writes the weekly report of the skill agent's example."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, TypeAlias

from msgspec import Struct

from grue import messages as m
from grue.testing.offline.chat_request import ChatRequest, text_of
from grue.testing.offline.script import Reply

_SKILL: Final = "weekly-report"
_NOTES: Final = "notes"
_REPORT: Final = "report.md"
_CANNOT: Final = (
    "I am a script that stands in for a model. I can only write the weekly report of the example."
)
_HOURS: Final = re.compile(r"\d+(?:\.\d+)?")
_WHERE, _READ_ALL, _THINK = "list_allowed_directories", "read_multiple_files", "think"

_Action: TypeAlias = tuple[str, m.JsonObject]
# By action and target: the output of the last such action that was completed; `None`: none was.
_Results: TypeAlias = dict[tuple[object, object], str | None]


class _Row(Struct, frozen=True):
    project: str
    hours: float
    what: str


def reply_to_task(request: ChatRequest) -> Reply:
    """Return the next actions, as JSON; without the example's skill, a `finish` that reports a failure."""
    system = "".join(text_of(each.content) for each in request.messages if each.role == "system")
    said = [text_of(each.content) for each in request.messages if each.role == "user"]
    if _SKILL not in {each.get("name") for each in _section(system, "SKILLS:\n")}:
        return _answer("", ("finish", {"answer": _CANNOT, "success": False}))
    tools = {str(each.get("name")) for each in _section(system, "MCP_TOOLS:\n")}
    results: _Results = {}
    for each in (each for text in said for each in _section(text, "RESULTS:\n")):
        key = str(each.get("action")), str(each.get("target", ""))
        completed = each.get("status") == "completed"
        results[key] = str(each.get("output", "")) if completed else results.get(key)
    return _preparing(results) or _reading(results, tools) or _writing(results, tools)


def _preparing(results: _Results) -> Reply | None:
    if results.get(("use_skill", _SKILL)) is not None and results.get(("list_files", _NOTES)) is not None:
        return None
    return _answer(
        "There is a skill for this report. I read it first, and look which notes there are.",
        ("use_skill", {"name": _SKILL}),
        ("list_files", {"path": _NOTES}),
    )


def _reading(results: _Results, tools: set[str]) -> Reply | None:
    if not {_WHERE, _READ_ALL} <= tools:
        unread = [path for path in _notes(results) if results.get(("read_file", path)) is None]
        reads: list[_Action] = [("read_file", {"path": path}) for path in unread]
        return _answer("Now the notes, one by one.", *reads) if unread else None
    if results.get(("mcp_call", _READ_ALL)) is not None:
        return None
    where = results.get(("mcp_call", _WHERE))
    if where is None:
        return _answer("The server for files says where it may read.", _call(_WHERE))
    folder = (where.strip().splitlines() or ["."])[-1]
    paths = [f"{folder}/{path}" for path in _notes(results)]
    return _answer("Now the notes, all at once.", _call(_READ_ALL, paths=paths))


def _writing(results: _Results, tools: set[str]) -> Reply:
    rows = _rows(results)
    sums = _sums(rows)
    total = sum(sums.values())
    if _THINK in tools and ("mcp_call", _THINK) not in results:
        most = next(iter(sums), "nothing")
        thought = (
            f"{len(rows)} lines, {total:g} hours. Most went into the {most}. Do the sums add up? They do."
        )
        step = {"thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}
        return _answer("The skill says: think before you write.", _call(_THINK, thought=thought, **step))
    if results.get(("write_file", _REPORT)) is None:
        said = f"I have read {len(_notes(results))} files and write {_REPORT}."
        return _answer(
            "The numbers agree.",
            ("respond", {"text": said}),
            ("write_file", {"path": _REPORT, "content": _report(rows)}),
        )
    return _answer("", ("finish", {"answer": f"{_REPORT}: {total:g} hours in {len(sums)} projects."}))


def _notes(results: _Results) -> list[str]:
    lines = (results.get(("list_files", _NOTES)) or "").splitlines()
    return [f"{_NOTES}/{name}" for line in lines if (name := line.rpartition(" (")[0]).endswith(".csv")]


def _rows(results: _Results) -> list[_Row]:
    texts = [results.get(("read_file", path)) or "" for path in _notes(results)]
    texts.append(results.get(("mcp_call", _READ_ALL)) or "")
    whole = (line for text in texts for line in _lines(text) if len(line) == 4 and _HOURS.fullmatch(line[2]))
    return [_Row(line[1], float(line[2]), line[3]) for line in whole]


def _lines(text: str) -> Iterator[list[str]]:
    with suppress(csv.Error):  # a field is longer than 128 KiB
        yield from csv.reader(io.StringIO(text, newline=None))


def _sums(rows: Iterable[_Row]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for row in rows:
        sums[row.project] = sums.get(row.project, 0.0) + row.hours
    return dict(sorted(sums.items(), key=lambda each: (-each[1], each[0])))


def _report(rows: list[_Row]) -> str:
    sums = _sums(rows)
    lines = [f"| {project} | {hours:g} |" for project, hours in sums.items()]
    longest = max(rows, key=lambda row: row.hours, default=_Row("nothing", 0.0, "no notes"))
    return "\n".join(
        [
            "# Weekly report\n",
            "| project | hours |\n|---|---|",
            *lines,
            f"| **sum** | {sum(sums.values()):g} |\n",
            f"Longest: {longest.project}, {longest.hours:g} h: {longest.what}\n",
        ]
    )


def _call(tool: str, **arguments: object) -> _Action:
    return "mcp_call", {"tool_name": tool, "arguments": arguments}


def _answer(thought: str, *actions: _Action) -> Reply:
    listed = [{"type": kind, "params": params} for kind, params in actions]
    said = f"{thought} (scripted)" if thought else "(scripted)"
    return Reply(content=json.dumps({"thought": said, "actions": listed}))


def _section(text: str, heading: str) -> list[m.JsonObject]:
    _, found, rest = text.partition(heading)
    try:
        listed, _ = json.JSONDecoder().raw_decode(rest) if found else ([], 0)
    except (ValueError, RecursionError):
        return []
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
