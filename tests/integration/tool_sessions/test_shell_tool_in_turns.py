"""The shell tool in turns of every lifetime: beside servers, at the turn's limit, under a policy."""

from pathlib import Path

import pytest
from fault_turns import Mode
from lifetimes import DONE, PLAIN_MODES, episode, modes
from transport_servers import faulty

from grue import FunctionTools, ShellTool, ToolAnnotations, ToolPolicy, ToolRule, TurnLimits, tool
from grue.errors import TurnTimedOut
from grue.messages import ToolCalled

in_every_lifetime = pytest.mark.parametrize("mode", modes(*PLAIN_MODES, "beside"))


@in_every_lifetime
@pytest.mark.slow
def test_commands_and_servers_serve_one_turn(mode: Mode, tmp_path: Path) -> None:
    servers = {"faulty": faulty(), "sh": ShellTool(folder=tmp_path, commands=["ls"])}
    calls = [("faulty.echo", {"text": "hi"}), ("sh.run", {"argv": ["ls"]}), ("sh.run", {"argv": ["rm", "x"]})]
    (tmp_path / "x").touch()
    with episode(mode, tmp_path, calls, DONE, calls, DONE, servers=servers) as played:
        for _ in range(2):
            outcome = played.turn()
            assert [call.settlement for call in outcome.tool_calls] == ["returned"] * 3
            assert [call.result.is_error for call in outcome.tool_calls] == [False, False, True]
    assert [body.server for body in played.said(ToolCalled)] == ["faulty", "sh", "sh"] * 2
    assert (tmp_path / "x").exists()


@in_every_lifetime
@pytest.mark.slow
def test_a_turn_s_limit_ends_its_command(mode: Mode, tmp_path: Path) -> None:
    servers = {"sh": ShellTool(folder=tmp_path, commands="any", shell=True)}
    stubborn = "trap '' TERM; while :; do sleep 600; done"
    limits = TurnLimits(turn_timeout_s=5.0)
    # The model gets the command's output shortly before the turn's limit, and may make a further call or two.
    calls = [[("sh.run", {"command": stubborn})]] * 8
    with (
        episode(mode, tmp_path, *calls, servers=servers, limits=limits) as played,
        pytest.raises(TurnTimedOut),
    ):
        played.turn()
    assert {body.tool for body in played.said(ToolCalled)} == {"run"}


def test_a_policy_judges_commands_by_what_the_tool_says_of_itself(tmp_path: Path) -> None:
    servers = {"sh": ShellTool(folder=tmp_path, commands=["touch"])}
    policy = ToolPolicy(rules=(ToolRule(read_only=False, destructive=True, verdict="deny"),))
    call = ("sh.run", {"argv": ["touch", "here"]})
    with episode("turn", tmp_path, [call], DONE, servers=servers, tool_policy=policy) as played:
        (record,) = played.turn().tool_calls
    assert record.result.is_error
    assert not (tmp_path / "here").exists()


def test_a_function_that_says_it_is_read_only_is_believed(tmp_path: Path) -> None:
    @tool(annotations=ToolAnnotations(read_only=True))
    def look() -> str:
        return "a cave"

    def dig() -> str:
        return "a hole"

    policy = ToolPolicy(rules=(ToolRule(read_only=True), ToolRule(verdict="deny")))
    calls = [("f.look", {}), ("f.dig", {})]
    servers = {"f": FunctionTools([look, dig])}
    with episode("turn", tmp_path, calls, DONE, servers=servers, tool_policy=policy) as played:
        assert [call.result.is_error for call in played.turn().tool_calls] == [False, True]
