# ruff: noqa: RUF001, E501 - these are the marks of the models
"""Thoughts and tool calls that are left in a text, in the forms of the models' own templates."""

import json
from pathlib import Path

import pytest
from case_tables import each_case
from growth import assert_linear

from grue.messages import ServerName, ToolDefinition
from grue.protocol.chat_wire.written_calls import _MOST_CALLS as MOST_CALLS
from grue.protocol.chat_wire.written_calls import ThoughtSplitter, Written, read_written, split_thoughts

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "lines": {"type": "integer"},
        "deep": {"type": ["boolean", "null"]},
    },
}
TOOLS = (
    ToolDefinition(server=ServerName("files"), tool="read", description="", input_schema=SCHEMA),
    ToolDefinition(server=ServerName("files"), tool="list", description="", input_schema={"type": "object"}),
)
READ = [("files.read", {"path": "/a"})]
BOTH = [*READ, ("files.list", {})]
HERMES = '<tool_call>\n{"name": "files.read", "arguments": {"path": "/a"}}\n</tool_call>'
LIST = '<tool_call>\n{"name": "files.list", "arguments": {}}\n</tool_call>'
XML = "<function=files.read>\n<parameter=path>\n/a\n</parameter>\n</function>"
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>files.read\n```json\n"
    '{"path": "/a"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
DEEPSEEK_31 = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>files.read<｜tool▁sep｜>{"path": "/a"}<｜tool▁call▁end｜>'
    "<｜tool▁call▁begin｜>files.list<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
)
HARMONY = '<|channel|>commentary to=functions.files.read <|constrain|>json<|message|>{"path": "/a"}<|call|>'
CALL = '{"name": "files.list", "arguments": {}}'
EMPTY = "<function=files.list></function>"
DEEPSEEK_ONE = "<｜tool▁call▁begin｜>files.list<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
KIMI_ONE = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.files.list:0"
    "<|tool_call_argument_begin|>{}<|tool_call_end|>"
)
FENCE = '```json\n{"name": "files.read", "arguments": {"path": "/a"}}\n```'


RENDERED = json.loads((Path(__file__).parents[3] / "recorded/chat_templates.json").read_text("utf-8"))[
    "replies"
]
SAID = {"one": READ, "said": READ, "two": [("files.read", {"path": "/a", "lines": 3}), ("files.list", {})]}


def calls(written: Written | None) -> object:
    return None if written is None else [(call.name, json.loads(call.arguments)) for call in written.calls]


@each_case(
    "text, form, expected",
    [
        (HERMES, "hermes", READ),
        (f"I will look.\n\n{HERMES}\n{LIST}\n", "hermes", BOTH),
        (f"{HERMES}<|im_end|>", "hermes", READ),
        (f"```xml\n{HERMES}\n```", "hermes", READ),
        (f"<tool_call>\n{XML}\n</tool_call>", "hermes", READ),
        ('<|tool_call|>[{"name": "files.read", "arguments": {"path": "/a"}}]', "hermes", READ),
        (XML, "function", READ),
        ('<function=files.read>{"path": "/a"}</function>', "function", READ),
        (
            "<function=files.read>\n<parameter=lines>\n3\n</parameter>\n<parameter=path>\n7\n</parameter>\n"
            "<parameter=deep>\ntrue\n</parameter>\n</function>",
            "function",
            [("files.read", {"lines": 3, "path": "7", "deep": True})],
        ),
        ('[TOOL_CALLS] [{"name": "files.read", "arguments": {"path": "/a"}}]</s>', "mistral", READ),
        ('[TOOL_CALLS]files.read[ARGS]{"path": "/a"}[TOOL_CALLS]files.list[ARGS]{}', "mistral", BOTH),
        ('[TOOL_CALLS]files.read[CALL_ID]abc[ARGS]{"path": "/a"}', "mistral", READ),
        (HARMONY, "harmony", READ),
        (f"<|start|>assistant{HARMONY}", "harmony", READ),
        (DEEPSEEK, "deepseek", READ),
        (DEEPSEEK_31, "deepseek", BOTH),
        ('<|python_tag|>{"name": "files.read", "parameters": {"path": "/a"}}<|eom_id|>', "llama", READ),
        (FENCE, "json", READ),
        ('{"name": "read", "parameters": {"path": "/a"}}', "json", [("read", {"path": "/a"})]),
        (
            '[{"type": "function", "id": "x", "function": {"name": "files.read", "arguments": "{\\"path\\": \\"/a\\"}"}}]',
            "json",
            READ,
        ),
    ],
)  # fmt: skip
def test_a_reply_that_is_a_call(text: str, form: str, expected: object) -> None:
    written = read_written(text, TOOLS)
    assert written is not None
    assert (written.form, calls(written), written.sure) == (form, expected, True)


@each_case(
    "schema, said, value",
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3),
        ({"anyOf": [{"type": "array", "items": {}}, {"type": "null"}]}, '["a"]', ["a"]),
        ({"oneOf": [{"anyOf": [{"type": "boolean"}]}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "3", "3"),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/x"}]}, "3", "3"),
        ({"anyOf": "x"}, "3", "3"),
        ({"type": {}}, "3", 3),
        (True, "3", "3"),
    ],
)
def test_a_value_between_marks_gets_a_type_that_its_schema_allows(
    schema: object, said: str, value: object
) -> None:
    tool = ToolDefinition(
        server=ServerName("files"), tool="read", description="", input_schema={"properties": {"x": schema}}
    )
    text = f"<function=files.read>\n<parameter=x>\n{said}\n</parameter>\n</function>"
    assert calls(read_written(text, [tool])) == [("files.read", {"x": value})]


@each_case("reply", RENDERED)
def test_a_reply_as_the_models_own_template_renders_it(reply: dict[str, str | bool]) -> None:
    """Whose form is read is read whole; no other is taken for an answer."""
    thoughts, rest = split_thoughts(str(reply["text"]))
    written = read_written(rest, TOOLS)
    assert written is not None
    assert (written.form, written.sure) == (reply["form"], reply["read"])
    if reply["read"]:
        assert calls(written) == SAID[str(reply["kind"])]
        assert thoughts + written.before == ("I look." if reply["kind"] == "said" else "")
        wired = rest.replace("files.read", "files_read").replace("files.list", "files_list")
        found = read_written(wired, TOOLS, ("files_read", "files_list"))
        assert found is not None
        assert [each for _, each in calls(found)] == [each for _, each in calls(written)], (  # type: ignore[attr-defined]
            "the types are those of the schema, whatever the request calls the tool"
        )


@each_case(
    "text, form",
    [
        (f"I look.{HERMES.replace('files.read', 'shop.buy')}", None),
        (f"I look.{HERMES} and so on", None),
        (f"I look, `{HERMES}`", None),
        (f"He writes {LIST}", None),
        (f"So:\n\n```\nx{HERMES}\n```", None),
        ('I look.<tool_call>\n{"name": "files.read", "argu', "hermes"),
        ("I look.<|tool_call_start|>[shop.buy()]<|tool_call_end|>", None),
        ("I look.<tool_call> is a mark.", None),
        ('{"how": "It writes<tool_call> and then files.read"}', None),
        (f'I look.<tool_call>{{"name": "files.read", "argu</tool_call>\n{LIST}', "hermes"),
        ("<tool_call>hello</tool_call>", "hermes"),
        ("<tool_call>files.read<arg_key>lines</arg_key><arg_value>x</arg_value></tool_call>", "hermes"),
        ("<tool_call>files.read<arg_key>path</arg_key></tool_call>", "hermes"),
        ("<tool_calls>{}\n[]</tool_calls>", "hermes"),
        ("<tool_calls>{\n}{\n}</tool_calls>", "hermes"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>files.read:0<|tool_call_argument_begin|>{}", "kimi"),
        ("<|tool_calls_section_begin|><|tool_calls_section_end|>", "kimi"),
        ('files.read\n{"path": "/a"}', "named"),
        ('The file\n{"path": "/a"}', None),
        ('I look.>>>files.read\n{"path": "/a"}', "named"),
        ('all\nI look.\n>>>files.read\n{"path": "/a"}>>>files.list\n{}', "named"),
        ('I look.>>>shop.buy\n{"path": "/a"}', None),
        ('I look, `>>>files.read\n{"path": "/a"}', None),
        ('So:\n\n```\n>>>files.read\n{"path": "/a"}', None),
        ('>>> files.read\n{"path": "/a"}', None),
    ],
)
def test_a_mark_behind_a_text_counts_if_a_template_writes_it_so(text: str, form: str | None) -> None:
    written = read_written(text, TOOLS)
    assert (None if written is None else written.form) == form
    assert written is None or not written.sure, "half of the calls is not what was said"


@each_case(
    "text, form",
    [
        ('<tool_call>\n{"name": "files.read", "arguments": {"path": "/a"', "hermes"),
        ('<tool_call>{"name": "files.read", "arguments": {"path": "/a"},}</tool_call>', "hermes"),
        ('<tool_call>{"name": "files.read", "arguments": {}, "path": "/a"}</tool_call>', "hermes"),
        (f"{HERMES}\nThe file says: hello.", "hermes"),
        ("<function=files.read>\n<parameter=lines>\nthree\n</parameter>\n</function>", "function"),
        ("<function=files.read>\n<parameter=path>\n/a", "function"),
        ('[TOOL_CALLS] [{"name": "files.read", "arguments": {"path": "/a"}}', "mistral"),
        ('<|channel|>commentary to=functions.files.read<|message|>{"path"', "harmony"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>files.read\n", "deepseek"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>functions.files.read:0", "kimi"),
        ('<function_calls>\n<invoke name="files.read">\n</invoke>\n</function_calls>', "invoke"),
        ('<minimax:tool_call>\n<invoke name="files.read"></invoke>\n</minimax:tool_call>', "invoke"),
        ("```tool_code\nprint(files.read(path='/a'))\n```", "gemma"),
        (f"I would call it so:\n{FENCE}", "json"),
        (f"I look.\n\n{CALL}", "json"),
        (f"I look:\n{CALL}", "json"),
        (f"See [1].\n[1] A list.\n\n[{CALL},\n{CALL}]", "json"),
        (f"<tool_call>\n{XML} and more\n</tool_call>", "hermes"),
        ("<tool_call>{}</tool_call>" * 2, "hermes"),
        ("<tool_call>[]</tool_call>", "hermes"),
        ('<tool_call>{"name": "files.read", "arguments": 7}</tool_call>', "hermes"),
        (f"<tool_call>[{CALL}" + f", {CALL}" * MOST_CALLS + "]</tool_call>", "hermes"),
        (f"<tool_call>{CALL}</tool_call>" * (MOST_CALLS + 1), "hermes"),
        (EMPTY * (MOST_CALLS + 1), "function"),
        ("<function=files.read>\n<parameter=path>\n/a\n</parameter> and more\n</function>", "function"),
        ("<function=files.read>\n<parameter=path>\n/a\n</function>", "function"),
        ("[TOOL_CALLS]files.read{}" * (MOST_CALLS + 1), "mistral"),
        ('[TOOL_CALLS]files.read[ARGS]["/a"]', "mistral"),
        ("<|channel|>commentary<|message|>I call nothing.<|call|>", "harmony"),
        (HARMONY * (MOST_CALLS + 1), "harmony"),
        ("<｜tool▁calls▁begin｜>files.read", "deepseek"),
        (DEEPSEEK_ONE * (MOST_CALLS + 1), "deepseek"),
        (f"I look.\n{DEEPSEEK_ONE}<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "deepseek"),
        (f"{KIMI_ONE}<|tool_calls_section_begin|>", "kimi"),
    ],
)
def test_a_call_that_is_not_sure_is_noticed_and_not_made(text: str, form: str) -> None:
    written = read_written(text, TOOLS)
    assert written is not None
    assert (written.form, written.sure) == (form, False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "It is a lamp.",
        "The mark <tool_call> begins a call.",
        f"So it looks:\n\n```\n{HERMES}\n```\n\nand then the server answers.",
        f"So it looks:\n\n{HERMES}\n\nand then the server answers.",
        "A list:\n\n<tool_call> is a mark.\n\nAnd more follows here.",
        '{"name": "Anna", "arguments": {"age": 3}}',
        'Her form:\n\n{"name": "Anna", "arguments": {"age": 3}}',
        f"So it looks:\n\n{CALL}\n\nand then the server answers.",
        f"The call {CALL}",
        '```json\n{"name": "files.read"}\n```',
        '{"name": "files.read", "arguments": {}, "score": 3}',
        '{"action": "files.read", "arguments": {}}',
        "[1, 2, 3]",
        "[" * 100_000,
    ],
)
def test_other_texts_are_no_calls(text: str) -> None:
    assert read_written(text, TOOLS) is None


@each_case(
    "text, thoughts, rest",
    [
        ("<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("<think>a</think><think>b</think>Yes.", "a\nb", "Yes."),
        ("[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
        ("Hm, so.\n</think>\n\nYes.", "Hm, so.", "Yes."),
        ("Hm, so.</think>Yes.", "Hm, so.", "Yes."),
        (f"</think>{HERMES}", "", HERMES),
        ("It writes: <think>Hm</think>Yes.", "", "It writes: <think>Hm</think>Yes."),
        ("It writes:\n```\nHm</think>Yes.\n```", "", "It writes:\n```\nHm</think>Yes.\n```"),
        ("<think>Hm", "Hm", ""),
        ("<think>Hm</think>", "Hm", ""),
        (f"<think>Hm</think>{HERMES}", "Hm", HERMES),
        ("The mark `</think>` ends a thought.", "", "The mark `</think>` ends a thought."),
        ("Use <think> first.", "", "Use <think> first."),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
            "Hm.",
            "Yes.",
        ),
        (f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{HARMONY}", "Hm.", f"<|start|>assistant{HARMONY}"),
        ("<|channel|>analysis<|message|>Hm", "Hm", ""),
    ],
)  # fmt: skip
def test_thoughts_are_told_from_the_text(text: str, thoughts: str, rest: str) -> None:
    assert split_thoughts(text) == (thoughts, rest)


@pytest.mark.parametrize(
    "piece",
    ["<tool_call>", "<tool_call>{}</tool_call>", "<function=a>", "<function=a></function>", "[TOOL_CALLS]a{}",
     "<|channel|>a<|message|>", "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{}", "<think>", "<think></think>", "```\n",
     "<|start|>", "<parameter=a>", "x<tool_call>", "a</think>b", "to=a<|channel|>", "<tool_calls>{}\n{}",
     "<tool_call>a<arg_key>k</arg_key><arg_value>", "<arg_key>k</arg_key><arg_value>v</arg_value>",
     "<|tool_calls_section_begin|><|tool_call_begin|>a<|tool_call_argument_begin|>{}<|tool_call_end|>", "\n</think>", "<tool_call>\n<function=a><parameter=b>", "\n<|channel|>"],
)  # fmt: skip
@pytest.mark.slow
def test_a_hostile_text_takes_time_in_proportion_to_its_length(piece: str) -> None:
    def read(times: int) -> None:
        read_written(split_thoughts(piece * times)[1], TOOLS)

    assert_linear(read, 40_000 // len(piece))


@pytest.mark.parametrize(
    ("begin", "piece", "end"), [("", "<think></think>", ""), ("Hm.\n```\n", ">>>files.read\n{\n", "}")]
)
@pytest.mark.slow
def test_a_mark_is_not_compared_with_all_that_came_before(begin: str, piece: str, end: str) -> None:
    def read(times: int) -> None:
        text = begin + piece * times + end
        read_written(split_thoughts(text)[1], TOOLS)
        ThoughtSplitter().feed(text)

    assert_linear(read, 15_000)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize(
    "text",
    [
        "It is a lamp.", "  It is < a lamp.", "<think>\nHm < so.\n</think>\n\nYes.", "<think>a</think>b<think>c</think>",
        "<think>a</think>\n<think>b</think>Yes </think>.", "[THINK]Hm[/THINK]Yes", "<thi", "<think>Hm</thi", "<", "",
        "\n<thinking>Hm</thinking>Yes", "<thinker>",
    ],
)  # fmt: skip
def test_thoughts_in_pieces_are_told_from_the_text(text: str, size: int) -> None:
    splitter = ThoughtSplitter()
    shown = [part for at in range(0, len(text), size) for part in splitter.feed(text[at : at + size])]
    shown += splitter.flush()
    thoughts, rest = split_thoughts(text)
    assert "".join(said for part, said in shown if part == "content") == rest
    said = "".join(said for part, said in shown if part == "reasoning")
    assert "".join(said.split()) == "".join(thoughts.split())
