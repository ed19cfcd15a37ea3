"""Which tools are offered, and which limit holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.messages import ServerName, ToolDefinition
from grue.runtime.processes.limits import ProcessLimits
from grue.tool_sessions.server_specs import ServerOptions


def tools(*names: str) -> tuple[ToolDefinition, ...]:
    return tuple(
        ToolDefinition(server=ServerName("s"), tool=name, description="", input_schema={}) for name in names
    )


@pytest.mark.parametrize(
    ("include", "exclude", "offered"),
    [
        (None, (), ["read_a", "read_b", "write", "Read_c"]),
        (("write",), (), ["write"]),
        (("read_*",), (), ["read_a", "read_b"]),
        (("read_[!a]", "w?ite"), (), ["read_b", "write"]),
        (None, ("read_*",), ["write", "Read_c"]),
        (("*",), ("write", "Read_c"), ["read_a", "read_b"]),
        (("write",), ("write",), []),
        ((), (), []),
    ],
)
def test_include_and_exclude_take_names_and_patterns(
    include: tuple[str, ...] | None, exclude: tuple[str, ...], offered: list[str]
) -> None:
    told: list[tuple[str, str]] = []
    options = ServerOptions(include=include, exclude=exclude)
    chosen = options.select(
        tools("read_a", "read_b", "write", "Read_c"), lambda kind, text: told.append((kind, text))
    )
    assert [tool.tool for tool in chosen] == offered
    assert told == []


def test_an_include_without_a_tool_is_told() -> None:
    told: list[tuple[str, str]] = []
    options = ServerOptions(include=("reed_*", "write"))
    options.select(tools("read_a", "write"), lambda kind, text: told.append((kind, text)))
    assert told == [("bad_tool", "tools.include has 'reed_*', and the server lists no such tool")]


def test_an_exclude_without_a_tool_is_told_because_what_it_means_is_offered() -> None:
    told: list[tuple[str, str]] = []
    options = ServerOptions(exclude=("Write", "read_*"))
    options.select(tools("read_a", "write"), lambda kind, text: told.append((kind, text)))
    assert told == [("bad_tool", "tools.exclude has 'Write', and the server lists no such tool")]


@given(st.floats(0, 1e6), st.none() | st.floats(0, 1e6, exclude_min=True))
def test_the_smaller_limit_holds(turn_s: float, own_s: float | None) -> None:
    options = ServerOptions(call_timeout_s=own_s)
    smaller = turn_s if own_s is None else min(turn_s, own_s)
    assert options.call_limit(turn_s) == smaller


def test_the_limits_of_a_process_are_the_usual_ones_but_for_its_own_exit_time() -> None:
    usual = ProcessLimits(exit_grace_s=1, term_grace_s=3)
    assert ServerOptions().of_process(usual) is usual
    assert ServerOptions(exit_grace_s=20).of_process(usual) == ProcessLimits(exit_grace_s=20, term_grace_s=3)
