"""Separate a model's thoughts and tool calls from its text, where the endpoint has left them in the text.

A text *about* calls must not be taken for a call, so a tag in the middle of a sentence, in a block of code or
between two paragraphs is usually ignored. The time is linear in the length of the text.

`tests/recorded/chat_templates.json` has the texts that the models' own templates make of a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from grue import messages as m
from grue.protocol.json_text import past_space, strict_value, to_json

MAX_CHARS = 2 * 2**20  # longest text in which calls are looked for
_MOST_CALLS = 100

_ENDS = (  # marks of a reply's end, which some servers leave in it
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>", "<|role_end|>"),
    *("</s>", "</assistant>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
)
_THOUGHTS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<mm:think>", "</mm:think>"),
)
_PAIRS = {  # the tags around calls; of the last two pairs, the end tag may be missing
    "<tool_call>": "</tool_call>",
    "<tool_calls>": "</tool_calls>",
    "<seed:tool_call>": "</seed:tool_call>",
    "<TOOLCALL>": "</TOOLCALL>",
    "<|START_ACTION|>": "<|END_ACTION|>",
    "<|tool_call|>": "<|/tool_call|>",
    "<|function_call|>": "<|message_sep|>",
}
_END_IN_PROMPT = ("<|tool_call|>", "<|function_call|>")
_FORMS = (
    rf"(?P<hermes>{'|'.join(map(re.escape, _PAIRS))})|(?P<function><function=)|(?P<mistral>\[TOOL_CALLS\])"
    r"|(?P<harmony><\|start\|>|<\|channel\|>)|(?P<deepseek><[\uff5c|]tool[\u2581_]calls?[\u2581_]begin[\uff5c|]>)"
    r"|(?P<llama><\|python_tag\|>)|(?P<kimi><\|tool_calls_section_begin\|>)"
    r"|(?P<invoke><(?:\w+:)?(?:function_calls|tool_calls?|invoke)(?::\w+)?[ >]|<[\uff5c|]DSML[\uff5c|]"
    r"|\]<\]minimax\[>\[<tool_call>|<function name=\"|<\|open\|>tools<\|sep\|>)"
    r"|(?P<gemma>```tool_co(?:de|call)|<\|tool_call>call:)"
    r"|(?P<other><\|tool_call_start\|>|<\|tool_calls\|>|<\|tools_prefix\|>)"
)
_MARKS = rf"^[ \t]*(?:{_FORMS}|(?P<recipient>to=[\w.\-/]{{1,200}} ?<\|channel\|>))"
_SIGNS = ("<", "[", "`")  # each tag contains one of these characters; most texts have none
_FIRST_CHARS = re.compile(r"[<\[\]]")  # of tags that may follow text directly; found faster than whole tags
_NO_TEXT = frozenset(" \t\n\r`'\"([")
_MOST_LOOKED_AT = 10_000
_FENCE = re.compile(r"```(?:json|tool_call|tool_calls|xml)?[ \t]*\n", re.IGNORECASE)
_NAMED = re.compile(r"(?:^|(?<=[^\s`'\"(\[]))>>>([\w.\-/:]{1,200})\n(?=\{)", re.MULTILINE)
_NAME = re.compile(r"[\w.\-/:]{1,200}")
_HARMONY = re.compile(
    r"(?:(?:<\|start\|>)?(?P<role>[^<]{0,200}))<\|channel\|>(?P<channel>[^<]{0,200})"
    r"(?:<\|constrain\|>[^<]{0,50})?<\|message\|>"
)
_HARMONY_END = re.compile(r"<\|(?:end|call|return|start)\|>")
_TO = re.compile(r"to=(?:functions\.)?([\w.\-/]{1,200})")
_ARGUMENT = re.compile(r"\s*<arg_key>([^<\n]{1,200})</arg_key>\s*<arg_value>")
_KIMI_CALL = re.compile(
    r"\s*<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[\w.\-/]{1,200})(?::\d{1,6})?\s*"
    r"<\|tool_call_argument_begin\|>"
)
_KIMI_END = re.compile(r"<\|tool_call_end\|>")
_KIMI_FRAME = re.compile(r"\s*<\|tool_calls_section_(?:begin|end)\|>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]{1,200})>")
_DEEPSEEK_CALL = re.compile(
    r"\s*<[\uff5c|]tool[\u2581_]call[\u2581_]begin[\uff5c|]>(?:function<[\uff5c|]tool[\u2581_]sep[\uff5c|]>)?"
    r"(?P<name>[\w.\-/:]{0,200})\s*(?:<[\uff5c|]tool[\u2581_]sep[\uff5c|]>)?\s*(?:```json\s)?\s*"
)
_DEEPSEEK_END = re.compile(r"<[\uff5c|]tool[\u2581_]call[\u2581_]end[\uff5c|]>")
_DEEPSEEK_FRAME = re.compile(r"\s*<[\uff5c|]tool[\u2581_]calls[\u2581_](?:begin|end)[\uff5c|]>")


class WrittenCall(Struct, frozen=True):
    """A call as it was written; `arguments` is JSON text."""

    name: str
    arguments: str


class Written(Struct, frozen=True):
    """Calls written as text in the syntax `form`, after the text `before`."""

    form: str
    calls: tuple[WrittenCall, ...] = ()  # empty: they cannot be read
    before: str = ""
    sure: bool = False  # the calls are whole, nothing follows them, and the text cannot be anything else


Part: TypeAlias = Literal["content", "reasoning"]

_Tools: TypeAlias = Mapping[str, m.ToolDefinition]
_Found: TypeAlias = tuple[list[WrittenCall], int]  # the calls, and where the text goes on after them


class _Unreadable(Exception):  # noqa: N818 - never leaves this module
    """Written calls are incomplete, do not follow their syntax exactly, or are too many."""


def split_thoughts(text: str) -> tuple[str, str]:
    """Return the thoughts at the beginning of a text, without their tags, and the rest of the text.

    After an opening tag without a closing one, the rest is thoughts. Some templates put the opening tag into
    the prompt, so that the text has only the closing tag. This tag counts only if it has a line to itself, or
    if it is not in a code block and no space, quote or the like is beside it (`_is_attached`). In harmony,
    thoughts are in the channel `analysis`.
    """
    thoughts: list[str] = []
    at = past_space(text, 0)
    while (marks := _marks_at(text, at)) is not None:
        begun = at + len(marks[0])
        end = text.find(marks[1], begun)
        thoughts.append(text[begun : end if end >= 0 else None].strip())
        at = len(text) if end < 0 else past_space(text, end + len(marks[1]))
    rest = text[at:]
    if not thoughts:
        for opening, closing in _THOUGHTS:
            said, found, after = text.partition(closing)
            alone = after[:1] in ("", "\n") and said.rpartition("\n")[2].strip() == ""
            attached = _is_attached(said[-1:]) and _is_attached(after[:1]) and opening not in said
            if found and (alone or (attached and not said.count("```") % 2)):
                return said.strip(), after.lstrip()
        if rest.startswith(("<|channel|>", "<|start|>")):
            return _split_harmony(rest)
        return "", text
    return "\n".join(filter(None, thoughts)), rest


def _marks_at(text: str, at: int) -> tuple[str, str] | None:
    return next((pair for pair in _THOUGHTS if text.startswith(pair[0], at)), None)


def _is_attached(char: str) -> bool:
    """Return whether a closing tag can count with `char` beside it; `char` is empty at an end of the text."""
    return not char or not (char.isspace() or char in "`'\"()[],;:")


class ThoughtSplitter:
    """Separates thoughts from a text that comes in pieces, if the text begins with their opening tag."""

    def __init__(self) -> None:
        self._held = ""
        self._end = ""
        self._decided = False
        self._thought = False

    def feed(self, text: str) -> list[tuple[Part, str]]:
        """Add a piece of text; return the parts that can be shown now, each with its kind."""
        if self._decided:
            return [("content", text)]
        held, at = self._held + text, 0
        out: list[tuple[Part, str]] = []
        while at < len(held) and not self._decided:
            if self._end:
                end = held.find(self._end, at)
                sizes = range(len(self._end) - 1, 0, -1) if end < 0 else ()
                begun = next((size for size in sizes if held[at:].endswith(self._end[:size])), 0)
                stop = end if end >= 0 else len(held) - begun
                out += [("reasoning", held[at:stop])] if stop > at else []
                at = stop
                if end < 0:
                    break
                at, self._end = past_space(held, end + len(self._end)), ""
                continue
            begun = past_space(held, at)
            marks = _marks_at(held, begun)
            if marks is not None:
                at, self._end, self._thought = begun + len(marks[0]), marks[1], True
            elif begun == len(held) or any(mark.startswith(held[begun:]) for mark, _ in _THOUGHTS):
                break
            else:
                self._decided = True
        self._held = held[at:]
        return out + self.flush() if self._decided else out

    def flush(self) -> list[tuple[Part, str]]:
        """Return the text that `feed` has held back. Call this after the last piece."""
        held, self._held = self._held, ""
        held = held.lstrip() if self._thought and not self._end else held
        return [("reasoning" if self._end else "content", held)] if held else []


def _split_harmony(text: str) -> tuple[str, str]:
    """Return the thoughts in a text in OpenAI's harmony format, and its answer or written call."""
    thoughts: list[str] = []
    words: list[str] = []
    for head, said, end in _messages(text):
        channel, to = head["channel"].split(" ")[0].strip(), _recipient(head)
        if to:
            return "\n".join(thoughts), text[head.start() :] if end else ""
        (thoughts if channel == "analysis" else words).append(said.strip())
    return "\n".join(filter(None, thoughts)), "\n".join(filter(None, words)) if thoughts or words else text


def _messages(text: str) -> Iterable[tuple[re.Match[str], str, int]]:
    """Yield the messages in a harmony text: the header's match, the message's text, and where it ends."""
    head = _HARMONY.match(text)
    while head is not None:
        ending = _HARMONY_END.search(text, head.end())
        end = len(text) if ending is None else ending.start()
        yield head, text[head.end() : end], end
        after = text.find("<|", end)
        if after >= 0 and not text.startswith("<|start|>", after):
            after = text.find(">", after) + 1
        head = _HARMONY.match(text, after) if after > 0 else None


def _recipient(head: re.Match[str]) -> str:
    found = _TO.search(f"{head['role'] or ''} {head['channel']}")
    return found[1] if found else ""


def read_written(
    text: str, tools: Iterable[m.ToolDefinition], wire_names: Iterable[str] = (), *, bare: bool = True
) -> Written | None:
    """Read the tool calls in a text; `None`: it has none, or is too long.

    `wire_names`: the names of `tools` on the wire, in the same order. `bare`: read also calls without tags,
    such as mere JSON, if all their tools are known.
    """
    text = text.strip()
    for end in _ENDS:
        text = text.removesuffix(end).rstrip()
    if not text or len(text) > MAX_CHARS:
        return None
    tools = tuple(tools)
    by_name = {tool.name: tool for tool in tools}
    by_name.update((name, tool) for name, tool in zip(wire_names, tools, strict=False) if name not in by_name)
    for tool in tools:
        by_name.setdefault(tool.tool, tool)
    known = by_name.keys()
    fence = _FENCE.match(text)
    if fence is not None and text.endswith("```"):
        inner = text[fence.end() : -3].strip()
        return _marked(inner, by_name) or (_bare(inner, known) if bare else None)
    found = _marked(text, by_name) or _named(text, known)
    if found is not None or not bare:
        return found
    return _bare(text, known) or _at_end(text, known)


def _marked(text: str, tools: _Tools) -> Written | None:
    if not any(sign in text for sign in _SIGNS):
        return None
    mark, attached = re.search(_MARKS, text, re.MULTILINE), _attached_mark(text)
    if attached is not None and (mark is None or attached.start() < mark.start()):
        found = _read_attached(text, attached, tools)
        if found is not None:
            return found
    else:
        attached = None
    if mark is None or text.count("```", 0, mark.start()) % 2:
        return None
    form, before = str(mark.lastgroup), text[: mark.start()].strip()
    form = "harmony" if form == "recipient" else form
    start = mark.end() - len(mark[0].lstrip(" \t"))
    try:
        calls, end = _read(form, text, start, tools)
    except _Unreadable:
        # A tag with text before it and a paragraph after it may be a quotation. Any other is a damaged call.
        return Written(form, before=before) if not before or not _goes_on(text, mark.end()) else None
    rest = text[end:].strip()
    if before and rest:
        return None
    # If `attached` is set, a tag before `mark` was not read as a call, so the result is not `sure`.
    return Written(form, tuple(calls), before, sure=bool(calls) and not rest and attached is None)


def _attached_mark(text: str) -> re.Match[str] | None:
    """Find the first tag that directly follows other text. `None` also if the text begins with `{`."""
    if text.startswith("{"):
        return None
    form = re.compile(_FORMS)
    for each in _FIRST_CHARS.finditer(text, 1):
        at = each.start()
        if text[at - 1] not in _NO_TEXT and (mark := form.match(text, at)) is not None:
            return mark
    return None


def _read_attached(text: str, mark: re.Match[str], tools: _Tools) -> Written | None:
    """Return the calls that begin at the tag `mark`; `None`: perhaps a quotation, or an unknown tool."""
    form, before, rest = str(mark.lastgroup), text[: mark.start()].strip(), text[mark.end() :]
    if text.count("```", 0, mark.start()) % 2:
        return None
    try:
        calls, end = _read(form, text, mark.start(), tools)
    except _Unreadable:
        calls, end = [], len(text)
    if calls:
        whole = not text[end:].strip() and all(call.name in tools for call in calls)
        return Written(form, tuple(calls), before, sure=True) if whole else None
    named = any(name in rest[:_MOST_LOOKED_AT] for name in tools)
    return Written(form, before=before) if named and not _goes_on(text, mark.end()) else None


def _goes_on(text: str, at: int) -> bool:
    return "\n\n" in text[at:].strip()


def _read(form: str, text: str, at: int, tools: _Tools) -> _Found:
    reader = _READERS.get(form)
    calls, end = ([], len(text)) if reader is None else reader(text, at, tools)
    if len(calls) > _MOST_CALLS:
        raise _Unreadable
    return calls, end


def _hermes(text: str, at: int, tools: _Tools) -> _Found:
    calls: list[WrittenCall] = []
    while (opening := next((each for each in _PAIRS if text.startswith(each, at)), "")) != "":
        closing = _PAIRS[opening]
        end = text.find(closing, at)
        if end < 0 and opening in _END_IN_PROMPT:
            end = len(text)
        if end < 0:
            raise _Unreadable
        inner = text[at + len(opening) : end].strip()
        if inner.startswith("<function="):
            found, inner_end = _function(inner, 0, tools)
            if inner[inner_end:].strip():
                raise _Unreadable
            calls += found
        elif inner.startswith(("{", "[")):
            calls += _objects(inner)
        else:
            calls.append(_arguments(inner, tools))
        at = past_space(text, min(len(text), end + len(closing)))
    return calls, at


def _function(text: str, at: int, tools: _Tools) -> _Found:
    calls: list[WrittenCall] = []
    while text.startswith("<function=", at):
        name = _NAME.match(text, at + len("<function="))
        end = text.find("</function>", at)
        if name is None or end < 0 or text[name.end() : name.end() + 1] != ">":
            raise _Unreadable
        inner = text[name.end() + 1 : end]
        tool = tools.get(name[0])
        written = _parameters(inner, tool) if "<parameter=" in inner else _object_text(inner.strip() or "{}")
        calls.append(WrittenCall(name[0], written))
        at = past_space(text, end + len("</function>"))
    return calls, at


def _arguments(text: str, tools: _Tools) -> WrittenCall:
    name = _NAME.match(text)
    if name is None or (name.end() == len(text) and name[0] not in tools):
        raise _Unreadable
    return WrittenCall(
        name[0], _parameters(text[name.end() :], tools.get(name[0]), opens=_ARGUMENT, ends="</arg_value>")
    )


def _parameters(
    text: str,
    tool: m.ToolDefinition | None,
    *,
    opens: re.Pattern[str] = _PARAMETER,
    ends: str = "</parameter>",
) -> str:
    """Return the arguments in elements such as `<parameter=key>` as JSON; the schema decides their types."""
    schema = {} if tool is None else tool.input_schema.get("properties")
    values: m.JsonObject = {}
    at = 0
    while (opening := opens.match(text, at)) is not None:
        end = text.find(ends, opening.end())
        if end < 0 or opening[1] in values:
            raise _Unreadable
        value = text[opening.end() : end].removeprefix("\n").removesuffix("\n")
        kinds = _kinds(schema.get(opening[1]) if isinstance(schema, dict) else None)
        values[opening[1]] = value if not kinds or "string" in kinds else _value(value)
        at = end + len(ends)
    if text[at:].strip():
        raise _Unreadable
    return to_json(values).decode()


def _value(text: str) -> object:
    try:
        return strict_value(text)
    except ValueError:
        raise _Unreadable from None


def _kinds(schema: object) -> list[object]:
    """Return the types that a schema allows; empty: the schema may allow any type."""
    if not isinstance(schema, dict):
        return []
    kind = schema.get("type")
    if kind is not None:
        return kind if isinstance(kind, list) else [kind]
    choices = schema.get("anyOf", schema.get("oneOf"))
    each = [_kinds(choice) for choice in choices] if isinstance(choices, list) else []
    return [kind for kinds in each for kind in kinds] if all(each) else []


def _mistral(text: str, at: int, _tools: _Tools) -> _Found:
    mark = "[TOOL_CALLS]"
    calls: list[WrittenCall] = []
    while text.startswith(mark, at):
        begun = past_space(text, at + len(mark))
        following = text.find(mark, begun)
        end = len(text) if following < 0 else following
        name = _NAME.match(text, begun)
        if name is None:
            calls += _objects(text[begun:end].strip())
        else:
            # Mistral's newer form: a name, perhaps `[ARGS]` or an id and `[ARGS]`, then the arguments.
            arguments = text[name.end() : end]
            _, marked, after = arguments.partition("[ARGS]")
            calls.append(WrittenCall(name[0], _object_text(after if marked else arguments)))
        at = end
    return calls, at


def _harmony(text: str, at: int, _tools: _Tools) -> _Found:
    calls: list[WrittenCall] = []
    last = at
    for head, said, end in _messages(text[at:]):
        to = _recipient(head)
        if to:
            calls.append(WrittenCall(to, _object_text(said)))
        last = at + end
    if not calls:
        raise _Unreadable
    rest = text[last:].strip()
    return calls, len(text) if rest in ("", *_ENDS) else last


def _framed(
    text: str, at: int, call: re.Pattern[str], end: re.Pattern[str], frame: re.Pattern[str], *, closed: bool
) -> _Found:
    """Return calls and where they end. `frame` tags may surround them; if `closed`, the last must."""
    calls: list[WrittenCall] = []
    begun = frame.match(text, at)
    at = begun.end() if begun else at
    while (opening := call.match(text, at)) is not None:
        ending = end.search(text, opening.end())
        if ending is None or not opening["name"]:
            raise _Unreadable
        said = text[opening.end() : ending.start()].rstrip().removesuffix("```")
        calls.append(WrittenCall(opening["name"], _object_text(said)))
        at = ending.end()
    closing = frame.match(text, at)
    if not calls or (closed and (closing is None or "begin" in closing[0])):
        raise _Unreadable
    return calls, closing.end() if closing else at


_READERS: dict[str, Callable[[str, int, _Tools], _Found]] = {
    "hermes": _hermes,
    "function": _function,
    "mistral": _mistral,
    "harmony": _harmony,
    "deepseek": lambda text, at, _tools: _framed(
        text, at, _DEEPSEEK_CALL, _DEEPSEEK_END, _DEEPSEEK_FRAME, closed=False
    ),
    "llama": lambda text, at, _tools: (_objects(text[at + len("<|python_tag|>") :].strip()), len(text)),
    "kimi": lambda text, at, _tools: _framed(text, at, _KIMI_CALL, _KIMI_END, _KIMI_FRAME, closed=True),
}
"""Calls of other forms (`invoke`, `gemma`, `named`, `other`) are recognised, but are not read."""


def _objects(text: str) -> list[WrittenCall]:
    try:
        value = strict_value(text)
    except ValueError:
        lines = text.splitlines()  # some models write one call per line
        if not all(line.startswith("{") and line.endswith("}") for line in lines):
            raise _Unreadable from None
        value = list(map(_value, lines))
    calls = [_call(each) for each in (value if isinstance(value, list) else [value])]
    if not calls or len(calls) > _MOST_CALLS:
        raise _Unreadable
    return calls


def _call(value: object) -> WrittenCall:
    match value:
        case {"function": {"name": str()} as function, **others} if others.keys() <= {"type", "id"}:
            return _call(function)
        case {"name": str() as name, "arguments": arguments, **others} | {
            "name": str() as name,
            "parameters": arguments,
            **others,
        } if name and others.keys() <= {"type", "id"}:
            if isinstance(arguments, dict):
                return WrittenCall(name, to_json(arguments).decode())
            if isinstance(arguments, str):
                return WrittenCall(name, _object_text(arguments))
        case {"tool_name": str() as name, "parameters": dict() as arguments, **others} if (
            name and others.keys() <= {"tool_call_id"}
        ):
            return WrittenCall(name, to_json(arguments).decode())
    raise _Unreadable


def _object_text(text: str) -> str:
    if not isinstance(_value(text.strip()), dict):
        raise _Unreadable
    return text.strip()


def _bare(text: str, known: Iterable[str]) -> Written | None:
    named, _, arguments = text.partition("\n")
    if named in known and arguments.startswith("{") and arguments.endswith("}"):
        return Written("named")
    if not text.startswith(("{", "[")):
        return None
    try:
        calls = _objects(text)
    except _Unreadable:
        return None
    return Written("json", tuple(calls), sure=True) if all(call.name in known for call in calls) else None


def _named(text: str, known: Iterable[str]) -> Written | None:
    """Find a call written as `>>>name`. `Written.calls` stays empty, because the arguments are not read."""
    if text.startswith("{") or not text.endswith("}"):
        return None
    fences = at = 0
    for mark in _NAMED.finditer(text):
        fences += text.count("```", at, mark.start())
        at = mark.start()
        if mark[1] in known and fences % 2 == 0:
            return Written("named", before=text[: mark.start()].removeprefix("all\n").strip())
    return None


def _at_end(text: str, known: Iterable[str]) -> Written | None:
    """Return the calls in JSON at a text's end, if any. They are not `sure`: perhaps an example."""
    starts = {text.rfind("\n\n") + 2, text.find("\n{") + 1, text.find("\n[") + 1} - {0, 1}
    candidates = [(start, text[start:]) for start in sorted(starts)]
    block = text.rfind("```", 0, -3) if text.endswith("```") else -1
    if block >= 0 and (fence := _FENCE.match(text, block)) is not None:
        candidates.insert(0, (block, text[fence.end() : -3]))
    for start, written in candidates:
        found = _bare(written.strip(), known)
        if found is not None:
            return Written("json", found.calls, before=text[:start].strip())
    return None
