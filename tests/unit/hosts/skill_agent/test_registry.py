"""Actions as JSON: their registry, the replies that it reads, and how an action is carried out."""

import math
import subprocess
import sys
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from case_tables import each_case
from msgspec import Struct

from grue import ToolAnnotations
from grue.errors import MCPConfigError
from grue.hosting import ConfinedFolder
from grue.hosts.skill_agent.actions import ActionRegistry
from grue.hosts.skill_agent.registry import FILE_ACTIONS, Action, ActionType, ActionTypes, PlannedAction

WORD: ContextVar[str] = ContextVar("WORD", default="")


class Move(Struct):
    direction: str
    steps: int = 1


class Seats(Struct):
    taken: dict[int, str]


class Plan(Struct, rename="camel"):
    what: str
    due_on: str | None
    extra: Any
    count: int = 1


class Pair(Struct, array_like=True):
    first: int


class Target(Struct):
    path: Path


def move(params: Move, world: list[str]) -> str:
    """Take a step.

    Further lines are not for the model.
    """
    if params.direction == "up":
        raise ValueError("There is a ceiling.")
    world += [params.direction] * params.steps
    return f"You are {params.direction} of the house."


def registry() -> ActionTypes:
    actions = ActionTypes([ActionType("call", Move, None, "Call a tool.")])
    actions.add("move", Move, move, annotations=ToolAnnotations(idempotent=True))
    return actions


def test_a_type_is_described_for_a_prompt_and_for_a_policy() -> None:
    kind = registry().types["move"]
    assert kind.described() == {
        "type": "move",
        "params": {"direction": "string", "steps": "integer, optional"},
        "description": "Take a step.",
    }
    definition = kind.definition()
    assert (definition.name, definition.annotations) == ("agent.move", ToolAnnotations(idempotent=True))
    assert definition.input_schema["$defs"]["Move"]["required"] == ["direction"]


def test_the_schema_of_a_reply_admits_each_type_with_its_own_parameters() -> None:
    schema = registry().schema()
    types = schema["properties"]["actions"]["items"]["anyOf"]
    assert [each["properties"]["type"]["enum"] for each in types] == [["call"], ["move"]]
    assert types[1]["properties"]["params"] == {"$ref": "#/$defs/Move"}
    assert "Move" in schema["$defs"]


def test_the_schema_of_the_agents_actions_has_no_docstrings() -> None:
    parameters = ActionRegistry().schema()["$defs"].values()
    assert len(parameters) == 7
    assert not [each["title"] for each in parameters if "description" in each]


def test_a_reply_is_read_alone_in_prose_and_with_null_for_what_is_left_out() -> None:
    actions = registry()
    one = '{"type": "move", "params": {"direction": "west", "steps": null}}'
    assert actions.read(f"Then: ```json\n{one}\n```").actions[0].type == "move"
    reply = actions.read(f'{{"thought": "hm", "actions": [{one}, {one}]}}')
    assert (reply.thought, len(reply.actions)) == ("hm", 2)
    assert actions.params("move", reply.actions[0].params) == Move("west", 1)
    assert actions.answer_spec().parse(one).actions == [Action("move", reply.actions[0].params)]


def test_null_stays_for_a_required_parameter_that_may_be_null() -> None:
    actions = ActionTypes([ActionType("plan", Plan, None, "Make a plan.")])
    params: dict[str, Any] = {"what": "dig", "dueOn": None, "extra": None, "count": None}
    assert actions.params("plan", params) == Plan("dig", None, None)
    with pytest.raises(ValueError, match="missing required field `what`"):
        actions.params("plan", {**params, "what": None})
    with pytest.raises(ValueError, match="missing required field `dueOn`"):
        actions.params("plan", {"what": "dig", "extra": None})


def test_a_parameter_may_be_a_dictionary_by_number() -> None:
    actions = ActionTypes([ActionType("seat", Seats, None, "Seat the guests.")])
    assert actions.params("seat", {"taken": {"7": "Ann"}}) == Seats({7: "Ann"})


@each_case(
    "reply, said",
    [
        ("I go west.", "not a JSON object"),
        ('{"actions": []}', "it has 0 actions"),
        ('{"actions": [{"type": "fly", "params": {}}]}', "there is no action 'fly'; there are call, move"),
        ('{"actions": [{"type": "move", "params": {}}]}', "missing required field `direction`"),
    ],
)
def test_a_reply_that_does_not_fit_is_refused_with_the_reason(reply: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"actions|JSON") as refused:
        registry().read(reply)
    assert said in str(refused.value)


def test_an_action_is_carried_out_with_the_hosts_context_and_in_the_callers_context() -> None:
    actions, world = registry(), list[str]()
    done = actions.carry_out("move", {"direction": "west", "steps": 2}, world, timeout_s=math.inf)
    assert (done, world) == ("You are west of the house.", ["west", "west"])
    WORD.set("here")
    actions.add("say", Move, lambda params, world: WORD.get())
    assert actions.carry_out("say", {"direction": "x"}, world, timeout_s=30) == "here"


def test_what_a_function_raises_is_raised() -> None:
    actions = registry()
    with pytest.raises(ValueError, match="a ceiling"):
        actions.carry_out("move", {"direction": "up"}, [], timeout_s=30)
    with pytest.raises(ValueError, match="carries out 'call' itself"):
        actions.carry_out("call", {"direction": "up"}, [], timeout_s=30)
    actions.add("wait", Move, lambda params, world: (_ for _ in ()).throw(TimeoutError("its own")))
    with pytest.raises(TimeoutError, match="its own"):
        actions.carry_out("wait", {"direction": "x"}, [], timeout_s=30)


def test_a_function_that_blocks_is_left_at_the_limit() -> None:
    actions, release = registry(), threading.Event()
    actions.add("block", Move, lambda params, world: str(release.wait(60)))
    with pytest.raises(TimeoutError, match=r"block was not done after 0\.01 s"):
        actions.carry_out("block", {"direction": "x"}, [], timeout_s=0.01)
    release.set()


@pytest.mark.slow
def test_a_function_that_blocks_does_not_keep_the_program_alive() -> None:
    program = """
import threading
from msgspec import Struct
from grue.hosts.skill_agent.registry import ActionTypes
class Nothing(Struct): pass
actions = ActionTypes()
actions.add("block", Nothing, lambda params, world: str(threading.Event().wait()))
try:
    actions.carry_out("block", {}, None, timeout_s=0.01)
except TimeoutError:
    print("left")
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout == "left\n"


def test_a_name_that_is_taken_and_parameters_that_are_no_struct_are_refused() -> None:
    with pytest.raises(MCPConfigError, match="an action 'move' already"):
        registry().add("move", Move, move)
    with pytest.raises(MCPConfigError, match=r"should be a msgspec\.Struct"):
        registry().add("other", dict, move)  # type: ignore[arg-type]
    for params in (Pair, Target):
        with pytest.raises(
            MCPConfigError, match=f"'other' have no JSON Schema of an object: {params.__name__}"
        ):
            registry().add("other", params, move)


async def later(params: Move, world: list[str]) -> str:
    raise AssertionError("nobody would await it")


def test_a_coroutine_function_is_refused_because_nobody_would_await_it() -> None:
    with pytest.raises(MCPConfigError, match="'later' wants a plain function"):
        registry().add("later", Move, later)  # type: ignore[arg-type]


class Desk(Struct):
    """The context of a host."""

    workspace: ConfinedFolder


def test_file_actions_work_in_the_workspace_of_the_context(tmp_path: Path) -> None:
    actions, desk = ActionTypes(FILE_ACTIONS), Desk(ConfinedFolder(tmp_path))

    def done(name: str, **params: str) -> str:
        return actions.carry_out(name, params, desk, timeout_s=60)

    assert done("list_files") == "The folder is empty."
    assert done("write_file", path="a/b.txt", content="hello") == "5 bytes written to a/b.txt"
    assert (done("list_files", path="a"), done("read_file", path="a/b.txt")) == ("b.txt (5 bytes)", "hello")
    with pytest.raises(ValueError, match="may leave the workspace"):
        done("read_file", path="../x")
    assert actions.types["write_file"].annotations.idempotent


def test_the_result_of_an_action_names_what_it_was_about() -> None:
    call = PlannedAction(step=3, type="call", params={"tool_name": "dig", "path": "x"})
    result = call.ended("failed", error="no spade")
    assert (result.step, result.action, result.target) == (3, "call", "dig")
    assert (result.status, result.error, result.output) == ("failed", "no spade", "")
    assert PlannedAction(step=4, type="note", params={"text": "x"}).target == ""
