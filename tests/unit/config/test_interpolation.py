"""`${...}`: each form, and that values are neither expanded again nor shown."""

from pathlib import Path

import pytest
from case_tables import each_case
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.config.interpolation import Scope, expand
from grue.errors import MCPConfigError

PLACE = "MCP server 'hub': env.TOKEN"


def scope(**environ: str) -> Scope:
    return Scope(environ=environ, workspace_folder=Path("/project"), source="/project/mcp_config.json")


@each_case(
    "text, expanded",
    [
        ("", ""),
        ("plain $A {A} $$ }", "plain $A {A} $$ }"),
        ("${A}", "one"),
        ("${env:A}-${A}${B2}", "one-onetwo"),
        ("${A:-other}", "one"),
        ("${NONE:-other}", "other"),
        ("${env:NONE:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("${NONE:-}", ""),
        ("${NONE:-a:-b\nc}", "a:-b\nc"),
        ("${workspaceFolder}/x:${userHome}/y", "/project/x:/home/z/y"),
    ],
)
def test_each_form_is_replaced_by_its_value(text: str, expanded: str) -> None:
    assert expand(text, scope(A="one", B2="two", EMPTY="", HOME="/home/z"), PLACE) == expanded


def test_the_servers_that_come_with_grue_have_a_folder() -> None:
    assert Path(expand("${grueServers}/think.py", scope(), PLACE)).is_file()


def test_the_home_is_the_users_own_where_the_environment_does_not_say() -> None:
    assert expand("${userHome}", scope(), PLACE) == str(Path.home())


@settings(max_examples=examples(200))
@given(
    st.text(), st.text(st.characters(exclude_characters="$")), st.text(st.characters(exclude_characters="$"))
)
def test_a_value_is_put_in_as_it_is(value: str, before: str, after: str) -> None:
    assert expand(f"{before}${{A}}{after}", scope(A=value), PLACE) == before + value + after


@pytest.mark.parametrize("text", ["${NONE}", "${env:NONE}", "x${A}${NONE}"])
def test_an_unset_variable_is_named_and_no_value_is(text: str) -> None:
    with pytest.raises(MCPConfigError) as caught:
        expand(text, scope(A="hunter2"), PLACE)
    assert str(caught.value) == (
        f"{PLACE} needs the environment variable NONE, which is not set."
        " Set it, or give a default: ${NONE:-...}."
    )
    assert caught.value.path == "/project/mcp_config.json"


@pytest.mark.parametrize(
    "text",
    [
        "${}",
        "${1}",
        "${input:hunter2}",
        "${env.A}",
        "${A-hunter2}",
        "${ A }",
        "${A:-${B:-hunter2}}",
        "${env:}",
    ],
)
def test_an_expression_of_no_known_form_is_refused_without_its_text(text: str) -> None:
    with pytest.raises(MCPConfigError, match="cannot expand") as caught:
        expand(text, scope(A="one"), PLACE)
    assert str(caught.value).startswith(PLACE)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["${A", "${A:-hunter2", "${A} ${"])
def test_an_expression_that_is_never_closed_is_refused(text: str) -> None:
    with pytest.raises(MCPConfigError, match="never closed") as caught:
        expand(text, scope(A="one"), PLACE)
    assert "hunter2" not in str(caught.value)
