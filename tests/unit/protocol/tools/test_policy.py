"""What a policy says about tools and calls; each row here fails if the rule that it names is broken."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from grue.errors import MCPConfigError
from grue.messages import ServerName, ToolDefinition
from grue.policies import ToolAnnotations, ToolPolicy, ToolRule
from grue.protocol.tools import policy as policies_of_tools
from grue.protocol.tools.built_in import READ_RESULT
from grue.protocol.tools.policy import (
    LIMIT_REACHED,
    NOT_ALLOWED,
    ToolHints,
    check_policy,
    definition_digest,
    hints_of,
    judge,
    terms_of,
)

STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}
BOOLS = st.none() | st.booleans()
ANNOTATIONS = st.none() | st.builds(
    ToolAnnotations, read_only=BOOLS, destructive=BOOLS, idempotent=BOOLS, open_world=BOOLS
)
RULES = st.builds(
    ToolRule,
    tools=st.sampled_from([("*",), ("a.*",), ("a.x", "b.?"), ("nothing",)]),
    read_only=BOOLS,
    destructive=BOOLS,
    idempotent=BOOLS,
    open_world=BOOLS,
    boxed=BOOLS,
    verdict=st.sampled_from(["allow", "ask", "deny"]),
    max_calls=st.none() | st.integers(0, 3),
    parallel=st.booleans(),
)
POLICIES = st.builds(
    ToolPolicy, rules=st.lists(RULES, max_size=5).map(tuple), trusted=st.sampled_from([(), ("b",)])
)


def tool(name: str = "a.x", *, trusted: bool = False, **hints: bool | None) -> ToolDefinition:
    server, _, bare = name.partition(".")
    return ToolDefinition(
        server=ServerName(server),
        tool=bare,
        input_schema={"type": "object"},
        annotations=ToolAnnotations(**hints) if hints else None,
        trusted=trusted,
    )


def table(*rows: dict[str, Any], trusted: tuple[str, ...] = ()) -> ToolPolicy:
    return ToolPolicy(rules=tuple(ToolRule(**row) for row in rows), trusted=trusted)


def verdict(policy: ToolPolicy, of: ToolDefinition) -> str:
    return terms_of(policy, of).verdict


def test_without_a_matching_row_a_call_is_allowed_one_at_a_time_and_without_limit() -> None:
    terms = terms_of(table({"tools": ("b.*",), "verdict": "deny"}), tool("a.x"))
    assert (terms.verdict, terms.max_calls, terms.parallel) == ("allow", None, False)


def test_the_first_matching_row_wins() -> None:
    rows: tuple[dict[str, Any], ...] = (
        {"tools": ("b.*",), "verdict": "deny"},
        {"tools": ("a.*",), "verdict": "ask"},
        {"verdict": "deny"},
    )
    assert verdict(table(*rows), tool("a.x")) == "ask"
    assert verdict(table(*reversed(rows)), tool("a.x")) == "deny"


@pytest.mark.parametrize(
    ("patterns", "name", "matches"),
    [
        (("a.x",), "a.x", True),
        (("a.x",), "a.xy", False),
        (("a.*",), "a.x.y", True),
        (("*",), "a.x", True),
        (("a.?",), "a.x", True),
        (("a.[xy]",), "a.y", True),
        (("A.X",), "a.x", False),
        (("b.*", "a.*"), "a.x", True),
        (("a.x",), "b.x", False),
        (("a.*",), "a.x\ny", True),
    ],
)
def test_rows_match_patterns_of_canonical_names(patterns: tuple[str, ...], name: str, matches: bool) -> None:
    assert (verdict(table({"tools": patterns, "verdict": "deny"}), tool(name)) == "deny") is matches


@pytest.mark.parametrize("hint", ["read_only", "destructive", "idempotent", "open_world"])
@pytest.mark.parametrize("stated", [True, False])
def test_rows_match_each_annotation(hint: str, stated: bool) -> None:
    policy = table({hint: stated, "verdict": "deny"})
    assert verdict(policy, tool(trusted=True, **{hint: stated})) == "deny"
    assert verdict(policy, tool(trusted=True, **{hint: not stated})) == "allow"


@pytest.mark.parametrize(
    ("rule", "boxed", "expected"),
    [
        (False, True, "allow"),
        (False, False, "ask"),
        (True, True, "ask"),
        (True, False, "allow"),
        (None, True, "ask"),
        (None, False, "ask"),
    ],
)
def test_a_row_can_ask_unless_the_server_runs_in_a_box(rule: bool | None, boxed: bool, expected: str) -> None:
    policy = table({"boxed": rule, "verdict": "ask"})
    for hints in ({}, {"read_only": True}):
        assert verdict(policy, replace(tool(**hints), boxed=boxed)) == expected


def test_a_tool_of_an_old_trace_counts_as_one_without_a_box() -> None:
    old = msgspec.json.decode(b'{"server": "a", "tool": "x", "input_schema": {}}', type=ToolDefinition)
    assert verdict(table({"boxed": False, "verdict": "ask"}), old) == "ask"
    assert b"boxed" not in msgspec.json.encode(old)
    assert definition_digest(old) == definition_digest(replace(old, boxed=True))


def test_absent_annotations_have_the_defaults_of_the_specification() -> None:
    defaults = ToolHints(read_only=False, destructive=True, idempotent=False, open_world=True)
    assert hints_of(None) == hints_of(ToolAnnotations()) == defaults


def test_a_read_only_tool_is_neither_destructive_nor_unrepeatable() -> None:
    claims = ToolAnnotations(read_only=True, destructive=True, idempotent=False)
    assert hints_of(claims) == ToolHints(read_only=True, destructive=False, idempotent=True)
    assert not hints_of(ToolAnnotations(read_only=True, open_world=False)).open_world


def test_a_row_needs_everything_that_it_names() -> None:
    policy = table({"tools": ("a.*",), "open_world": True, "destructive": True, "verdict": "deny"})
    assert verdict(policy, tool(trusted=True, open_world=True, destructive=True)) == "deny"
    assert verdict(policy, tool(trusted=True, open_world=False, destructive=True)) == "allow"
    assert verdict(policy, tool(trusted=True, open_world=True, destructive=False)) == "allow"
    assert verdict(policy, tool("b.x", trusted=True)) == "allow"


LOOSE = table({"read_only": True, "verdict": "allow", "parallel": True}, {"verdict": "ask"})


def test_an_untrusted_annotation_obtains_nothing() -> None:
    terms = terms_of(LOOSE, tool(read_only=True))
    assert (terms.verdict, terms.parallel, terms.read_only) == ("ask", False, False)


def test_annotations_count_where_the_lock_holds_them_or_the_server_is_trusted() -> None:
    locked = terms_of(LOOSE, tool(read_only=True, trusted=True))
    believed = terms_of(replace(LOOSE, trusted=("a",)), tool(read_only=True))
    other = terms_of(replace(LOOSE, trusted=("b",)), tool(read_only=True))
    assert (locked.verdict, locked.parallel, locked.read_only) == ("allow", True, True)
    assert believed == locked
    assert other.verdict == "ask"


def test_an_untrusted_annotation_can_make_the_result_stricter() -> None:
    policy = table(
        {"read_only": True, "verdict": "deny", "max_calls": 1, "reason": "claims too much"}, {"max_calls": 5}
    )
    terms = terms_of(policy, tool(read_only=True))
    assert (terms.verdict, terms.max_calls, terms.reason) == ("deny", 1, "claims too much")
    lenient = table({"read_only": True, "max_calls": 5}, {"max_calls": 1})
    assert terms_of(lenient, tool(read_only=True)).max_calls == 1


@given(POLICIES, ANNOTATIONS)
def test_untrusted_annotations_only_tighten(policy: ToolPolicy, annotations: ToolAnnotations | None) -> None:
    silent = tool()
    claims, plain = terms_of(policy, replace(silent, annotations=annotations)), terms_of(policy, silent)
    assert STRICTNESS[claims.verdict] >= STRICTNESS[plain.verdict]
    assert claims.parallel <= plain.parallel
    assert claims.read_only <= plain.read_only
    if plain.max_calls is not None:
        assert claims.max_calls is not None
        assert claims.max_calls <= plain.max_calls


def test_parallel_is_for_read_only_tools() -> None:
    policy = table({"parallel": True})
    assert terms_of(policy, tool(trusted=True, read_only=True)).parallel
    assert not terms_of(policy, tool(trusted=True, read_only=False)).parallel
    assert not terms_of(policy, tool()).parallel


def test_a_denied_call_has_the_reason_of_its_row() -> None:
    named = table({"verdict": "deny", "reason": "it costs money"})
    (terms,), _ = judge(named, [tool()], {})
    (bare,), _ = judge(table({"verdict": "deny"}), [tool()], {})
    assert (terms.verdict, terms.reason, bare.reason) == ("deny", "it costs money", NOT_ALLOWED)


def test_a_limit_counts_the_calls_of_a_tool_over_the_turn() -> None:
    policy = table({"tools": ("a.*",), "max_calls": 2}, {"tools": ("b.*",), "verdict": "ask", "max_calls": 1})
    judged, used = judge(policy, [tool("a.x"), tool("a.y"), tool("b.x"), tool("b.x"), tool("a.x")], {})
    assert [terms.verdict for terms in judged] == ["allow", "allow", "ask", "deny", "allow"]
    assert used == {"a.x": 2, "a.y": 1, "b.x": 1}
    (more,), same = judge(policy, [tool("a.x")], used)
    assert (more.verdict, more.reason) == ("deny", LIMIT_REACHED.format(most=2))
    assert same == used  # a denied call does not count
    assert judge(policy, [tool("c.x")], used) == (judge(policy, [tool("c.x")], {})[0], used)


def test_a_limit_of_zero_denies_every_call() -> None:
    (terms,), used = judge(table({"max_calls": 0}), [tool()], {})
    assert (terms.verdict, used) == ("deny", {})


def test_an_asked_call_says_why_and_whether_it_changes_something() -> None:
    policy = table({"verdict": "ask", "reason": "it deletes"}, trusted=("a",))
    (terms, reading), _ = judge(policy, [tool(), tool("a.y", read_only=True)], {})
    assert (terms.verdict, terms.reason, terms.read_only) == ("ask", "it deletes", False)
    assert reading.read_only


@pytest.mark.parametrize(
    "change",
    [
        {"description": "other"},
        {"input_schema": {"type": "object", "properties": {}}},
        {"description": "long" * 10_000},
        {"output_schema": {}},
        {"annotations": ToolAnnotations(read_only=True)},
        {"tool": "y"},
        {"server": "b"},
    ],
)
def test_an_approvals_digest_covers_everything_that_a_server_says_of_a_tool(change: dict[str, Any]) -> None:
    assert definition_digest(replace(tool(), **change)) != definition_digest(tool())


def test_the_digest_does_not_depend_on_our_own_marks() -> None:
    assert definition_digest(tool(trusted=True)) == definition_digest(tool())


@pytest.mark.parametrize(
    ("policy", "fault"),
    [
        (table({}, {"tools": ()}), "rule 2: tools should be"),
        (table({"tools": "a.*"}), "rule 1: tools should be"),
        (ToolPolicy(rules=({"verdict": "deny"},)), r"rule 1: write ToolRule\(...\), not dict"),  # type: ignore[arg-type]
        (table({"verdict": "maybe"}), "rule 1: verdict should be allow, ask or deny, not 'maybe'"),
        (table({"max_calls": -1}), "max_calls should be 0 or more, not -1"),
        (ToolPolicy(park_for_s=0), "park_for_s should be above 0"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(policy: ToolPolicy, fault: str) -> None:
    with pytest.raises(MCPConfigError, match=fault):
        check_policy(policy)


def test_a_usable_policy_is_returned() -> None:
    policy = replace(LOOSE, park_for_s=0.5)
    assert check_policy(policy) is policy


def test_a_definition_with_half_a_surrogate_pair_has_a_digest() -> None:
    half = tool()
    odd = replace(half, description="\ud800")
    assert definition_digest(odd) == definition_digest(replace(odd)) != definition_digest(half)


def test_digests_stay_right_when_there_are_more_than_are_kept() -> None:
    first = definition_digest(tool())
    for number in range(policies_of_tools._CACHED + 1):
        definition_digest(replace(tool(), description=str(number)))
    assert definition_digest(tool()) == first


def test_a_built_in_tool_is_always_allowed() -> None:
    deny = ToolPolicy(rules=(ToolRule(verdict="deny"),))
    assert terms_of(deny, READ_RESULT).verdict == "allow"
    like = replace(READ_RESULT, server=ServerName("files"))
    assert terms_of(deny, like).verdict == "deny", "a server cannot serve a tool under that name"
