"""A test written from a trace passes, and fails when a tool, a call or the answer changes."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import anyio
import pytest
from commands import forked, grue
from forked_turns import Box, model, records, runner
from msgspec.structs import replace

from grue import (
    Budget,
    FunctionTools,
    Price,
    Runner,
    ToolPolicy,
    ToolRule,
    ToolSearch,
    TurnLimits,
    TurnRequest,
    tool,
)
from grue.cli.trace_to_test import to_test
from grue.errors import AnswerError, ApprovalPending, ConversationError, LLMError, MCPConfigError, TraceError
from grue.messages import (
    AssistantReply,
    CompletionReceived,
    ServerName,
    ToolCallRecord,
    ToolCallResult,
    ToolDefinition,
    Usage,
    UserText,
)
from grue.policies import ApprovalDecision, ApprovalQuestion, ToolAnnotations
from grue.protocol.tools.lock import ToolLock, lock_of
from grue.runtime.trace.recorder import Recorder
from grue.testing.decisions import Called, assert_answer, assert_calls
from grue.testing.fake_tools import FakeToolServer
from grue.testing.llm_server import (
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    error_reply,
    text_reply,
    tool_calls_reply,
)
from grue.tool_sessions.connection import Listing

PYTEST = str(Path(pytest.__file__).with_name("__main__.py"))
SECRET = "sk-live-0123456789abcdefghijklmnop"


def run(folder: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    command = forked(PYTEST, *options, *map(str, files))
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("written")
    with records(folder) as found:
        for (kind, wire), record in found.items():
            if wire == "chat_completions":
                to_test(record.trace, record.turn, (), folder / f"test_{kind}.py")
    return {path.stem.removeprefix("test_"): path for path in folder.glob("test_*.py")}


@pytest.mark.slow
def test_the_tests_of_all_kinds_of_turns_pass(written: dict[str, Path]) -> None:
    assert sorted(written) == ["asked", "cleared", "conversation", "images", "parked", "plain"]
    done = run(written["plain"].parent, *written.values())
    assert "6 passed" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        (
            "'lamp: dust'),\n    ('shed",
            "'lamp: clean'),\n    ('shed",
            "its result is 'lamp: clean', not 'lamp: dust'",
        ),
        ("Called('box.look', {'at': 'lamp'}", "Called('box.look', {'at': 'hat'}", "its arguments is"),
        ("    assert_answer(outcome, 'After", "    assert_answer(outcome, 'Before", "the answer is 'After 3"),
        (
            "    runner = Runner(\n",
            "    import grue\n    runner = Runner(\n        limits=grue.TurnLimits(max_tool_iterations=1),\n",
            "max_iterations",
        ),
    ],
)
@pytest.mark.slow
def test_it_fails_when_something_has_changed(
    written: dict[str, Path], tmp_path: Path, was: str, now: str, says: str
) -> None:
    source = written["plain"].read_text()
    assert source.count(was) == 1
    path = tmp_path / "test_changed.py"
    path.write_text(source.replace(was, now))
    done = run(tmp_path, path)
    assert "1 failed" in done.stdout
    assert says in done.stdout


ASKED = ToolPolicy(rules=(ToolRule(tools=("shop.*",), verdict="ask"),))
NEXT = tool_calls_reply(("shop.next", {}))
LOOK = tool_calls_reply(("shop.look", {"at": "lamp"}))
LONG = "a_name_that_is_longer_than_a_function_of_the_test_may_have_it"


def others(questions: tuple[ApprovalQuestion, ...]) -> list[ApprovalDecision]:
    return [question.change({"at": "hat"}) for question in questions]


@pytest.mark.parametrize(
    ("replies", "how"),
    [
        pytest.param([NEXT, NEXT, NEXT, "x"], {}, id="one call with several results"),
        pytest.param([tool_calls_reply(("shop.look", {"at": "a", "by": None})), "x"], {}, id="null"),
        pytest.param([LOOK, "x"], {"tool_policy": ASKED, "approve": others}, id="other arguments"),
        pytest.param([LOOK, "x"], {"tool_policy": ASKED}, id="denied"),
        pytest.param([tool_calls_reply(("shop.sell", {})), "x"], {}, id="unknown tool"),
        pytest.param([tool_calls_reply(("shop.look", "{at")), "x"], {}, id="no JSON"),
        pytest.param([tool_calls_reply(("shop.look", {"at": 3})), LOOK, "x"], {}, id="wrong type"),
        pytest.param([text_reply(""), "x"], {}, id="forced without a call"),
        pytest.param(
            [tool_calls_reply((f"shop.{LONG}_1", {}), (f"shop.{LONG}_2", {})), "x"], {}, id="long names"
        ),
        pytest.param([text_reply("par", finish_reason="content_filter"), "x"], {}, id="stopped reply"),
        pytest.param(
            [
                tool_calls_reply(("find_tools", {"query": "look"})),
                tool_calls_reply(("call_tool", {"name": "shop.look", "arguments": {"at": "a"}})),
                "x",
            ],
            {"tool_search": ToolSearch(above=3)},
            id="found tool",
        ),
    ],
)
def test_what_has_happened_to_a_call_happens_in_the_test(
    tmp_path: Path, replies: list[LlmReply | str], how: dict[str, Any]
) -> None:
    results = iter(range(9))

    def look(at: str, by: str | None = None) -> str:
        return f"{at}: {by}"

    functions = {name: lambda: next(results) for name in ("next", f"{LONG}_1", f"{LONG}_2")}
    servers = {"shop": FunctionTools({"look": look, **functions})}
    trace, path = tmp_path / "a.jsonl", tmp_path / "test_a.py"
    with (
        ScriptedLlmServer(replies) as server,
        runner(server, "chat_completions", trace, servers=servers, **how) as each,
    ):
        each.run_turn(TurnRequest(user="Sell it."))
    assert to_test(trace, None, (), path), path.read_text()


@pytest.mark.parametrize(
    ("names", "value"), [(["from"], "a"), (["of-x", "at"], "a"), (["__at", "recorded"], "a"), ([], None)]
)
def test_arguments_that_no_function_can_have_are_given_to_the_stand_in(
    tmp_path: Path, names: list[str], value: str | None
) -> None:
    shop = FakeToolServer("shop")
    shop.answers("look", "dust", schema={"type": "object", "properties": {name: {} for name in names}})
    trace, path = tmp_path / "a.jsonl", tmp_path / "test_a.py"
    call = tool_calls_reply(("shop.look", dict.fromkeys(names or ["more"], value)))
    with (
        ScriptedLlmServer([call, "x"]) as server,
        runner(server, "chat_completions", trace, servers={"shop": shop}) as each,
    ):
        assert each.run_turn(TurnRequest(user="Look.")).tool_calls[0].result.content == "dust"
    assert to_test(trace, None, (), path), path.read_text()


@pytest.mark.parametrize("arguments", [{}, {"at": "lamp"}])
def test_a_server_that_takes_more_than_it_lists_does_so_in_the_test(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    shop = FakeToolServer("shop")
    shop.answers("look", "dust", schema={"type": "object", "properties": {"of": {}}, "required": ["of"]})
    more = FunctionTools({}, catch_all=lambda name, arguments: [name, arguments])
    trace, path = tmp_path / "a.jsonl", tmp_path / "test_a.py"
    calls = tool_calls_reply(("shop.look", arguments), ("more.sell", arguments))
    with (
        ScriptedLlmServer([calls, "x"]) as server,
        runner(server, "chat_completions", trace, servers={"shop": shop, "more": more}) as each,
    ):
        outcome = each.run_turn(TurnRequest(user="Look."))
    assert [call.settlement for call in outcome.tool_calls] == ["returned", "returned"]
    assert to_test(trace, None, (), path), path.read_text()


def test_the_stand_in_of_a_trusted_tool_has_its_annotations(tmp_path: Path) -> None:
    @tool(annotations=ToolAnnotations(read_only=True))
    def look(at: str) -> str:
        return f"{at}: dust"

    reads = ToolPolicy(rules=(ToolRule(read_only=True), ToolRule(verdict="deny")))
    trace, path = tmp_path / "a.jsonl", tmp_path / "test_a.py"
    servers = {"shop": FunctionTools([look])}
    with (
        ScriptedLlmServer([LOOK, "x"]) as server,
        runner(server, "chat_completions", trace, servers=servers, tool_policy=reads) as each,
    ):
        assert each.run_turn(TurnRequest(user="Look.")).tool_calls[0].settlement == "returned"
    assert to_test(trace, None, (), path), path.read_text()


class SlowShop(FakeToolServer):
    """Lists its tools only after the model has replied."""

    replied: anyio.Event

    async def __aenter__(self) -> Self:
        self.replied = anyio.Event()
        return await super().__aenter__()

    async def open(self, timeout_s: float) -> Listing:
        await self.replied.wait()
        return await super().open(timeout_s)


def test_a_reply_that_was_dropped_is_not_in_the_test(tmp_path: Path) -> None:
    """The first reply was asked for with the tools of the lock, before the server had listed others."""
    shop, recorder = SlowShop("shop"), Recorder()
    shop.answers("next", 1)
    recorder.watch({CompletionReceived: lambda _: shop.replied.set()})
    old = ToolDefinition(server=ServerName("shop"), tool="next", description="Old.", input_schema={})
    lock = ToolLock({"shop": lock_of((old,))}, listings={"shop": (old,)})
    trace, path = tmp_path / "a.jsonl", tmp_path / "test_a.py"
    how = {"servers": {"shop": shop}, "tool_lock": lock, "recorder": recorder}
    with (
        ScriptedLlmServer([NEXT, NEXT, "x"]) as server,
        runner(server, "chat_completions", trace, **how) as each,
    ):
        assert len(each.run_turn(TurnRequest(user="Sell it.")).tool_calls) == 1
    assert to_test(trace, None, (), path), path.read_text()


@pytest.mark.slow
def test_values_of_one_name_in_two_modules_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, said in (("mine_first", "one"), ("mine_second", "two")):
        (tmp_path / f"{module}.py").write_text(
            f"from grue import FunctionTools\n\nTOOLS = FunctionTools({{'look': lambda at: {said!r}}})\n"
            "servers, request = TOOLS, str\n"
        )
    monkeypatch.chdir(tmp_path)
    servers = {"a": FunctionTools({"look": lambda at: "one"}), "b": FunctionTools({"look": lambda at: "two"})}
    replies = [tool_calls_reply(("a.look", {"at": "x"}), ("b.look", {"at": "x"})), text_reply("x")]
    trace = tmp_path / "a.jsonl"
    with (
        ScriptedLlmServer(replies) as server,
        runner(server, "chat_completions", trace, servers=servers) as each,
    ):
        each.run_turn(TurnRequest(user="Look."))
    for number, name in enumerate(("TOOLS", "servers")):
        tools = (f"a=mine_first:{name}", "b=mine_second:TOOLS")
        assert to_test(trace, None, tools, tmp_path / f"test_{number}.py", answer="mine_second:request")


def test_a_conversation_whose_beginning_is_in_another_trace_is_no_test(tmp_path: Path) -> None:
    trace, path = tmp_path / "a.jsonl", tmp_path / "test_a.py"
    with (
        ScriptedLlmServer(["x"]) as server,
        runner(server, "chat_completions", trace, servers={}) as each,
    ):
        each.run_turn(TurnRequest(user="And?", history=[UserText("One."), AssistantReply(content="Two.")]))
    with pytest.raises(ConversationError, match="cannot be run again: the trace does not hold what was said"):
        to_test(trace, None, (), path)
    assert not path.exists()


def test_an_image_that_is_damaged_is_named(tmp_path: Path) -> None:
    trace, path = tmp_path / "a.jsonl", tmp_path / "test_a.py"
    with (
        ScriptedLlmServer(["x"]) as server,
        runner(server, "chat_completions", trace, servers={}) as each,
    ):
        each.run_turn(TurnRequest(user="What is it?", images=[b"\x89PNG\r\n\x1a\n"]))
    trace.write_text(trace.read_text().replace('"iVBORw0KGgo="', '"iVBORw0KGgo"'))
    with pytest.raises(TraceError, match=r"An image of turn 1 in .*a\.jsonl is damaged: "):
        to_test(trace, None, (), path)
    assert not path.exists()


@pytest.mark.slow
def test_a_tool_of_the_policy_that_was_not_called_is_not_told_as_unknown(tmp_path: Path) -> None:
    policy = ToolPolicy(rules=(ToolRule(tools=("box.delete",), verdict="deny"),))
    with (
        ScriptedLlmServer(["Nothing to do."]) as server,
        runner(
            server, "chat_completions", tmp_path / "a.jsonl", servers=Box().servers(), tool_policy=policy
        ) as each,
    ):
        each.run_turn(TurnRequest(user="Tidy up."))
    done = grue("trace", "to-test", "a.jsonl", "-o", "test_a.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_your_own_functions_take_the_place_of_recorded_results(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from grue import FunctionTools\n\n\n"
        "def look(at: str) -> str:\n    return f'{at}: dust'\n\n\n"
        "def delete(name: str) -> str:\n    return f'{name} is gone'\n\n\n"
        "BOX, SHED = FunctionTools([look, delete]), FunctionTools([look])\n"
    )
    with (
        ScriptedLlmServer(model) as server,
        runner(server, "chat_completions", tmp_path / "a.jsonl", servers=Box().servers()) as each,
    ):
        each.run_turn(TurnRequest(user="Tidy up."))
    done = grue(
        "trace", "to-test", "a.jsonl", "--tools", "box=mine:BOX", "--tools", "shed=mine:SHED",
        "-o", "test_a.py", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    source = (tmp_path / "test_a.py").read_text()
    assert "recorded" not in source.partition('"""\n')[2]
    assert "1 passed" in run(tmp_path, tmp_path / "test_a.py").stdout
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text().replace("is gone", "stays"))
    assert "its result is 'old stays', not 'old is gone'" in run(tmp_path, tmp_path / "test_a.py").stdout
    again = grue("trace", "to-test", "a.jsonl", "-o", "test_a.py", cwd=tmp_path)
    assert again.returncode != 0
    assert "exists already" in again.stderr
    nowhere = grue("trace", "to-test", "a.jsonl", "-o", "a.jsonl/test_b.py", cwd=tmp_path)
    assert (nowhere.returncode, nowhere.stderr) == (
        2, "grue: Cannot write a.jsonl/test_b.py: Not a directory.\n",
    )  # fmt: skip


@pytest.mark.slow
def test_secrets_and_hostile_names_do_not_get_into_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = '"""\nraise SystemExit("run")\n"""'
    replies = [tool_calls_reply(("box.look", {"at": evil}), ids=("c1",)), text_reply(f"{evil} {SECRET}")]
    trace = tmp_path / "a.jsonl"
    with ScriptedLlmServer(replies) as server:
        tools = {"box": FunctionTools({"look": lambda at: at})}
        with runner(server, "chat_completions", trace, servers=tools) as each:
            each.run_turn(TurnRequest(user=evil, system=evil))
    monkeypatch.setenv("SHOP_API_KEY", SECRET)
    path = tmp_path / "test_a.py"
    to_test(trace, None, (), path)
    assert SECRET not in path.read_text()
    assert "1 passed" in run(tmp_path, path).stdout


def test_what_cannot_be_told_as_a_test_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        ScriptedLlmServer(model) as server,
        runner(server, "chat_completions", tmp_path / "a.jsonl", servers=Box().servers()) as each,
    ):
        each.run_turn(TurnRequest(user="Tidy up."))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_too.py").write_text("def look(at: str) -> str:\n    return at\n")
    (tmp_path / "broken_one.py").write_text("raise OSError('no disk')\n")
    (tmp_path / "exiting_one.py").write_text("raise SystemExit\n")
    for tools, says in (
        (("box",), "wants SERVER=MODULE:NAME"),
        (("attic=a:b",), "no server 'attic'"),
        (("box=nowhere.at_all:TOOLS",), "ModuleNotFoundError: No module named 'nowhere'"),
        (("box=broken_one:TOOLS",), "cannot be imported from this folder: OSError: no disk"),
        (("box=exiting_one:TOOLS",), "cannot be imported from this folder: SystemExit"),
        (("box=mine_too:TOOLS",), "box=mine_too:TOOLS: module 'mine_too' has no attribute 'TOOLS'"),
        (("box=mine_too:look",), r"Write FunctionTools\(\[look\]\)"),
    ):
        with pytest.raises(MCPConfigError, match=says):
            to_test(tmp_path / "a.jsonl", None, tools, tmp_path / "test_a.py")
    assert not (tmp_path / "test_a.py").exists()


def test_a_test_that_fails_without_words_is_told_by_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The replies of the test cost nothing, so nothing forces an answer when money is spent."""
    trace = tmp_path / "a.jsonl"
    with ScriptedLlmServer([tool_calls_reply(("box.look", {})), text_reply("dust")]) as server:
        llm = replace(server.settings, prices={"*": Price(input=100.0, output=100.0)})
        box = {"box": FunctionTools({"look": lambda: "dust"})}
        limits = TurnLimits(budget=Budget(cost_usd=0.001))
        with Runner(llm=llm, servers=box, limits=limits, trace=trace) as each:
            assert each.run_turn("Look.").reason == "budget"
    assert not to_test(trace, None, (), tmp_path / "test_a.py")
    assert "AssertionError: assert outcome.kind == 'forced'" in capsys.readouterr().err


def test_a_turn_whose_model_failed_is_no_test(tmp_path: Path) -> None:
    """Without further replies the scripted model fails too, so that the test would always pass."""
    trace, path = tmp_path / "a.jsonl", tmp_path / "test_a.py"
    with (
        ScriptedLlmServer([error_reply(401, "No such key.")]) as server,
        runner(server, "chat_completions", trace, servers={}) as each,
        pytest.raises(LLMError),
    ):
        each.run_turn(TurnRequest(user="Hello."))
    with pytest.raises(MCPConfigError, match=r"its model failed \(refused 401: .*No such key.*scripted_llm"):
        to_test(trace, None, (), path)
    assert not path.exists()


def test_a_turn_that_reads_a_result_of_an_earlier_turn_is_no_test(tmp_path: Path) -> None:
    """The whole result is in the trace only, and the test has no trace."""
    trace, path = tmp_path / "a.jsonl", tmp_path / "test_a.py"
    read = tool_calls_reply(("read_result", {"handle": "c1", "last_line": 1}))
    replies = [tool_calls_reply(("box.look", {}), ids=["c1"]), "Much.", read, "Dust."]
    box = {"box": FunctionTools({"look": lambda: "dust\n" * 9000})}
    with (
        ScriptedLlmServer(replies) as server,
        runner(server, "chat_completions", trace, servers=box) as each,
    ):
        talk = each.conversation()
        talk.ask("Look.")
        assert talk.ask("What is it?").tool_calls[0].settlement == "returned"
    with pytest.raises(MCPConfigError, match="it reads a result of an earlier turn with read_result"):
        to_test(trace, 2, (), path)
    assert not path.exists()


def test_a_parked_turn_is_no_test(tmp_path: Path) -> None:
    trace, parks = tmp_path / "a.jsonl", replace(ASKED, parking=True)
    servers = {"shop": FunctionTools({"look": lambda at: at})}
    with (
        ScriptedLlmServer([LOOK]) as server,
        runner(server, "chat_completions", trace, servers=servers, tool_policy=parks) as each,
        pytest.raises(ApprovalPending),
    ):
        each.run_turn(TurnRequest(user="Look."))
    with pytest.raises(MCPConfigError, match="Turn 1 cannot be told as a test: it is parked"):
        to_test(trace, None, (), tmp_path / "test_a.py")


@pytest.mark.slow
def test_a_turn_without_a_usable_answer_is_a_test_of_that(tmp_path: Path) -> None:
    trace, path = tmp_path / "a.jsonl", tmp_path / "test_a.py"
    with (
        ScriptedLlmServer([text_reply("north"), text_reply("south")]) as server,
        runner(server, "chat_completions", trace, servers={}) as each,
        pytest.raises(AnswerError),
    ):
        each.run_turn(TurnRequest(user="Count.", answer=list[int]))
    to_test(trace, None, (), path)
    assert "pytest.raises(AnswerError)" in path.read_text()
    assert "1 passed" in run(tmp_path, path).stdout


KINDS = """from dataclasses import dataclass
from typing import Literal

from grue import AnswerSpec

QUEUE = AnswerSpec.of(Literal["urgent", "normal"], fallback="normal")
NUMBERS = list[int]


@dataclass
class Letter:
    topic: Literal["bug", "praise"]
    urgent: bool = False


def there_is_one(room):
    if room != "north":
        raise ValueError("no such room")
    return room


ROOM = AnswerSpec.of(str, check=there_is_one)
"""


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("name", "replies", "asserted"),
    [
        ("QUEUE", ["urgent"], "'urgent'"),
        ("QUEUE", ['{"value": "urgent"}'], "'urgent'"),
        ("QUEUE", ["soon", "later"], "'normal', fallback=True"),
        ("ROOM", ["soth", "north"], "'north'"),
        ("NUMBERS", ["[1, 2]"], "[1, 2]"),
        ("Letter", ['Here:\n```json\n{"topic": "bug"}\n```'], "{'topic': 'bug', 'urgent': False}"),
    ],
)
def test_any_type_of_answer_is_asserted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    own: bool, name: str, replies: list[str], asserted: str,
) -> None:  # fmt: skip
    """Also one that is not plain JSON, was refused at first, or is the fallback."""
    (tmp_path / "kinds_of_answers.py").write_text(KINDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kinds_of_answers", raising=False)
    kinds = importlib.import_module("kinds_of_answers")
    trace, path = tmp_path / "a.jsonl", tmp_path / "test_a.py"
    with ScriptedLlmServer(replies) as server, runner(server, "chat_completions", trace, servers={}) as each:
        each.run_turn(TurnRequest(user="Sort it.", answer=getattr(kinds, name)))
    to_test(trace, None, (), path, answer=f"kinds_of_answers:{name}" if own else None)
    assert f"assert_answer(outcome, {asserted})" in path.read_text()
    assert (f"answer={name}," in path.read_text()) is own
    refused = not own and name == "ROOM"
    assert ("no such room" in path.read_text()) is refused, "why a reply was refused is told as it was"
    printed = capsys.readouterr()
    assert printed.err == "", "to-test has run it, and it has passed"
    assert ", and the test passes. Run it with: " in printed.out


@pytest.mark.slow
def test_an_answer_that_is_no_type_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        ScriptedLlmServer(["1"]) as server,
        runner(server, "chat_completions", tmp_path / "a.jsonl", servers={}) as each,
    ):
        each.run_turn(TurnRequest(user="Count.", answer=int))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no_answers.py").write_text("NUMBER = 7\nTEXT = str\n")
    for answer, says in (
        ("NUMBER", "--answer wants MODULE:NAME, not 'NUMBER'"),
        ("no_answers:OTHER", "--answer no_answers:OTHER: module 'no_answers' has no attribute 'OTHER'"),
        ("no_answers:NUMBER", "--answer no_answers:NUMBER: answer= wants a type"),
    ):
        with pytest.raises(MCPConfigError, match=says):
            to_test(tmp_path / "a.jsonl", None, (), tmp_path / "test_a.py", answer=answer)
    assert not (tmp_path / "test_a.py").exists()
    # The user's type is another one now: the test is written, and says at once that it does not hold.
    done = grue("trace", "to-test", "a.jsonl", "--answer", "no_answers:TEXT", "-o", "test_b.py", cwd=tmp_path)
    assert "Wrote test_b.py. Run it" in done.stdout
    assert done.returncode == 1
    assert "It does not pass now: AssertionError: the answer is '1', not 1" in done.stderr
    done = grue(
        "trace",
        "to-test",
        "a.jsonl",
        "--answer",
        "no_answers:TEXT",
        "-o",
        "test_c.py",
        "--no-run",
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")


class Outcome:
    kind, reason, response, usage = "answered", "", "north", Usage()

    def __init__(self, *names: str) -> None:
        self.tool_calls = tuple(
            ToolCallRecord(
                call_id=name,
                name=name,
                arguments='{"a": 1}',
                iteration=1,
                settlement="returned",
                result=ToolCallResult("x"),
            )
            for name in names
        )


def test_the_assertions_name_the_first_difference() -> None:
    made: Any = Outcome("a.b", "a.c")
    assert_calls(made, Called("a.b", {"a": 1}, result="x"), Called("a.c", {"a": 1}))
    rows = [
        ((Called("a.b", {"a": 1}),), "call 2 is one too many: a.c"),
        ((Called("a.x", {"a": 1}),), "the tool is 'a.b', not 'a.x'"),
        ((*[Called("a.b", {"a": 1}), Called("a.c", {"a": 1})], Called("a.d", {})), "call 3 is missing: a.d"),
        ((Called("a.b", {"a": 1}, settlement="denied"),), "its settlement is 'returned', not 'denied'"),
        ((Called("a.b", {"a": 1}, error="no"),), "its error is None, not 'no'"),
    ]
    for expected, says in rows:
        with pytest.raises(AssertionError, match=says):
            assert_calls(made, *expected)
    refused: Any = Outcome("a.b")
    no_b = ToolCallResult(is_error=True, error_message="No b.")
    refused.tool_calls = (replace(refused.tool_calls[0], settlement="rejected", result=no_b),)
    with pytest.raises(AssertionError, match=r"its settlement is 'rejected' \(No b\.\), not 'returned'"):
        assert_calls(refused, Called("a.b", {"a": 1}))
    assert_answer(made, "north")
    with pytest.raises(AssertionError, match="the answer is 'north', not 'south'"):
        assert_answer(made, "south")
    with pytest.raises(AssertionError, match="the model gave an answer, 'north', and not the fallback"):
        assert_answer(made, "north", fallback=True)
    made.kind, made.reason = "fallback", "no usable answer"
    assert_answer(made, "north", fallback=True)
    with pytest.raises(AssertionError, match="there is no answer of the model: no usable answer"):
        assert_answer(made, "north")


AGENT = """from grue import FunctionTools, Runner


def price(of: str) -> object:
    return {result}


TOOLS = FunctionTools([price])


def decide(user, llm):
    with Runner(llm=llm, servers={{"shop": TOOLS}}) as runner:
        return runner.run_turn(user)
"""


def clerk(request: LlmRequest) -> LlmReply:
    """Look the price up, and believe what the tool says."""
    told = [message for message in request.messages if message["role"] == "tool"]
    if not told:
        return tool_calls_reply(("shop.price", {"of": "lamp"}), ids=("c1",))
    euros = "0.04" if "euros" in str(told[-1]["content"]) else told[-1]["content"]
    return text_reply(f"It costs {euros} euros.")


@pytest.mark.slow
def test_from_a_wrong_answer_to_a_regression_test(tmp_path: Path) -> None:
    """The case of the guide: the tool means cents; a fork shows what the right result leads to."""
    (tmp_path / "my_agent.py").write_text(AGENT.format(result=4))
    (tmp_path / "fixed.json").write_text('{"euros": 0.04}')

    def price(of: str) -> int:
        return 4

    with ScriptedLlmServer(clerk) as server:
        tools = {"shop": FunctionTools([price])}
        with runner(server, "chat_completions", tmp_path / "a.jsonl", servers=tools) as each:
            wrong = each.run_turn(TurnRequest(user="What is a lamp?"))
        assert wrong.response == "It costs 4 euros."
        forked = grue(
            "fork", "a.jsonl", "--tool-result", "c1=fixed.json", "--run-dir", "forked", cwd=tmp_path
        )
    assert forked.stdout.startswith("It costs 0.04 euros."), forked.stderr
    written = grue(
        "trace", "to-test", "forked", "--tools", "shop=my_agent:TOOLS", "-o", "test_price.py", cwd=tmp_path
    )
    assert written.returncode == 1, written.stderr
    assert "does not pass now: AssertionError: call 1, shop.price" in written.stderr
    before = run(tmp_path, tmp_path / "test_price.py").stdout
    assert "its result is 4, not {'euros': 0.04}" in before
    (tmp_path / "my_agent.py").write_text(AGENT.format(result='{"euros": 0.04}'))
    assert "1 passed" in run(tmp_path, tmp_path / "test_price.py").stdout
    # The user's own function in place of the runner, as the first lines of the file say.
    source = (tmp_path / "test_price.py").read_text()
    assert "outcome = my_agent.decide(USER, llm=llm)" in source.partition("import")[0]
    mine = source.replace("runner.run_turn(request)", "my_agent.decide(USER, llm=llm)", 2)
    mine = mine.replace("from typing import Any", "import my_agent\nfrom typing import Any")
    (tmp_path / "test_mine.py").write_text(mine)
    assert "1 passed" in run(tmp_path, tmp_path / "test_mine.py").stdout
    (tmp_path / "my_agent.py").write_text(AGENT.format(result="5"))
    assert "its result is 5, not {'euros': 0.04}" in run(tmp_path, tmp_path / "test_mine.py").stdout


@pytest.mark.slow
def test_the_test_of_a_fork_fails_if_the_limit_that_it_changed_is_changed_back(tmp_path: Path) -> None:
    def price(of: str) -> str:
        return f"{of}: {'cheap ' * 100} 4 euros"

    def reads(request: LlmRequest) -> LlmReply:
        said = [str(each["content"]) for each in request.messages if each["role"] == "tool"]
        if not said:
            return tool_calls_reply(("shop.price", {"of": "lamp"}), ids=["c1"])
        return text_reply("cut" if "[cut: " in said[-1] else "whole")

    servers = {"shop": FunctionTools([price])}
    with ScriptedLlmServer(reads) as server:
        limits = TurnLimits(max_result_chars=200)
        llm = server.settings
        with Runner(llm=llm, servers=servers, limits=limits, trace=tmp_path / "a.jsonl") as each:
            assert each.run_turn("What is a lamp?").response == "cut"
        with Runner(llm=llm, trace=tmp_path / "b.jsonl") as each:
            assert each.fork(tmp_path / "a.jsonl", max_result_chars=2000).response == "whole"
    path = tmp_path / "test_price.py"
    to_test(tmp_path / "b.jsonl", None, (), path)
    assert "1 passed" in run(tmp_path, path).stdout
    path.write_text(path.read_text().replace("max_result_chars=2000", "max_result_chars=200"))
    assert "which results the model read cut" in run(tmp_path, path).stdout
