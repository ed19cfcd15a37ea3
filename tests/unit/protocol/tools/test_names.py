"""Canonical and wire names."""

import re

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.protocol.tools.names import WireNames, is_wire_name, split_known, split_name, split_unlisted

PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")

# Few letters, so that names that differ only in what encoding removes are common.
NAMES = st.one_of(
    st.text(alphabet="ab._-/ é0", max_size=8),
    st.text(alphabet="ab._", min_size=55, max_size=140),
    st.text(max_size=20),
)


@given(server=st.text().filter(lambda text: "." not in text), tool=st.text())
def test_p35_a_name_is_split_at_its_first_dot(server: str, tool: str) -> None:
    assert split_name(f"{server}.{tool}") == (server, tool)


def test_p35_a_name_without_a_dot_is_refused_in_the_expected_words() -> None:
    with pytest.raises(ValueError, match=r"think") as caught:
        split_name("think")
    assert str(caught.value) == (
        "Invalid tool name format: think. Expected format: {server_name}.{tool_name}"
    )


@settings(max_examples=examples(300))
@given(first=st.lists(NAMES), later=st.lists(NAMES))
def test_p38_encoded_names_match_the_pattern_differ_and_come_back(first: list[str], later: list[str]) -> None:
    names = WireNames("encoded", first)
    before = {name: names.to_wire(name) for name in first}
    wire = {name: names.to_wire(name) for name in [*first, *later]}
    assert all(PATTERN.fullmatch(encoded) for encoded in wire.values())
    assert len(set(wire.values())) == len(wire)
    assert all(names.to_canonical(encoded) == name for name, encoded in wire.items())
    assert {name: wire[name] for name in first} == before


@given(names=st.lists(NAMES, unique=True), seed=st.randoms(use_true_random=False))
@pytest.mark.slow
def test_the_order_of_a_listing_does_not_change_the_names(names: list[str], seed: object) -> None:
    shuffled = sorted(names, key=lambda _: seed.random())  # type: ignore[attr-defined]
    one, other = WireNames("encoded", names), WireNames("encoded", shuffled)
    assert [one.to_wire(name) for name in names] == [other.to_wire(name) for name in names]


@given(name=st.text())
def test_canonical_names_go_out_and_come_back_as_they_are(name: str) -> None:
    names = WireNames("canonical", [name])
    assert names.to_wire(name) == name
    assert names.to_canonical(name) == name


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("thoughtbox.think", "thoughtbox__think"),
        ("files.read.text", "files__read_text"),
        ("already_fine-1", "already_fine-1"),
        ("9lives.purr", "t_9lives__purr"),
        ("", "t_"),
    ],
)
def test_an_encoded_name_stays_readable(name: str, wire: str) -> None:
    assert WireNames("encoded").to_wire(name) == wire


def test_a_name_that_needs_no_encoding_keeps_its_own() -> None:
    names = WireNames("encoded", ["a.b", "a__b"])
    assert names.to_wire("a__b") == "a__b"
    assert re.fullmatch(r"a__b_[0-9a-f]{10}", names.to_wire("a.b"))


def test_long_names_with_the_same_beginning_stay_apart() -> None:
    one, other = ("server." + "x" * 80 + end for end in "ab")
    names = WireNames("encoded", [one, other])
    assert len(names.to_wire(one)) == 64
    assert names.to_wire(one) != names.to_wire(other)


def test_an_invented_name_comes_back_as_it_is() -> None:
    names = WireNames("encoded", ["think.think"])
    assert names.to_canonical("no_such_tool") == "no_such_tool"
    assert names.to_canonical("think.think") == "think.think"


@pytest.mark.parametrize(("name", "fits"), [("a", True), ("a" * 64, True), ("a" * 65, False), ("a.b", False)])
def test_is_wire_name(name: str, fits: bool) -> None:
    assert is_wire_name(name) is fits


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("f.dig", ("f", "dig")),
        ("f.dig.deep", ("f", "dig.deep")),
        ("f__dig", ("f", "dig")),
        ("g.dig", ("g", "dig")),
        ("dig", None),
        ("f", None),
        ("f.", None),
        ("h.dig", None),
        ("ff.dig", None),
    ],
)
def test_an_unlisted_name_belongs_to_the_server_that_it_begins_with(
    name: str, found: tuple[str, str] | None
) -> None:
    assert split_unlisted(name, ("f", "g")) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("mcp.files.read", ("mcp", "files.read")),
        ("mcp__files__read", ("mcp", "files.read")),
        ("mcp__files__read__all", ("mcp", "files.read__all")),
        ("mcp__read", ("mcp", "read")),
        ("mcp.read__all", ("mcp", "read__all")),
    ],
)
def test_an_unlisted_mcp_tool_keeps_its_server_in_either_form(name: str, found: tuple[str, str]) -> None:
    assert split_unlisted(name, ("mcp",)) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("mcp.files.read", ("mcp.files", "read")),
        ("mcp.files.read.all", ("mcp.files", "read.all")),
        ("mcp.other.read", ("mcp", "other.read")),
        ("web.get", None),
        ("mcp", None),
    ],
)
def test_of_the_known_servers_the_longest_name_counts(name: str, found: tuple[str, str] | None) -> None:
    assert split_known(name, ("mcp", "mcp.files")) == found


def test_the_wire_name_of_an_mcp_tool_is_the_one_that_other_hosts_use() -> None:
    names = WireNames("encoded")
    assert names.to_wire("mcp.files.read") == "mcp__files__read"
    assert names.to_wire("files.read.all") == "files__read_all"
    assert names.to_canonical("mcp__files__read") == "mcp.files.read"
