"""The tool lock as a file: sorted, readable in a diff, and refused when it is something else."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from later_python import hide_errors_of_paths

from grue.config import tool_lock_file
from grue.config.settings import GameConfiguration
from grue.config.tool_lock_file import lock_path, read_tool_lock, write
from grue.config.wiring import on_tool_drift, tool_lock
from grue.errors import MCPConfigError
from grue.messages import ServerName, ToolDefinition
from grue.protocol.tools.lock import drift, lock_of, screen


def tool(name: str, description: str = "") -> ToolDefinition:
    return ToolDefinition(
        server=ServerName("a"), tool=name, description=description, input_schema={"type": "object"}
    )


def test_the_file_is_sorted_indented_and_one_line_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "mcp_tools.lock"
    write(path, {"b": [tool("z"), tool("é", "Ein Wort.\nUnd mehr.")], "a": []})
    text = path.read_text(encoding="utf-8")
    document = json.loads(text)
    assert text == json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert document["version"] == 1
    assert list(document["servers"]) == ["a", "b"]
    assert list(document["servers"]["b"]) == ["z", "é"]
    assert document["servers"]["b"]["é"]["summary"] == "Ein Wort."
    assert list(tmp_path.iterdir()) == [path], "nothing else is left in the folder"


@example(names=["\ud800", "é"])
@given(names=st.lists(st.text(st.characters(codec=None), min_size=1, max_size=10), max_size=5, unique=True))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    path = tmp_path_factory.mktemp("lock") / "mcp_tools.lock"
    tools = [tool(name, name) for name in names]
    write(path, {"a": tools})
    lock = read_tool_lock(str(path))
    assert lock is not None
    assert lock.pins("a") == lock_of(tools)
    assert drift(lock.pins("a"), tools) == ()


def test_writing_says_what_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "mcp_tools.lock"
    first = write(path, {"a": [tool("x"), tool("y")], "b": [tool("z")], "gone": [tool("w")]})
    assert [(note.server, note.tool, note.change) for note in first] == [
        ("a", "x", "added"),
        ("a", "y", "added"),
        ("b", "z", "added"),
        ("gone", "w", "added"),
    ]
    second = write(path, {"a": [tool("x", "new")]}, keep=("a", "b"))
    assert [(note.server, note.tool, note.change) for note in second] == [
        ("a", "x", "changed"),
        ("a", "y", "removed"),
        ("gone", "w", "removed"),
    ]
    lock = read_tool_lock(path)
    assert lock is not None
    assert set(lock.servers) == {"a", "b"}
    assert lock.pins("b") == lock_of([tool("z")])
    assert write(path, {"a": [tool("x", "new")]}, keep=("a", "b")) == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1, column 2"),
        ("[]", "not a tool lock"),
        ("{}", "version"),
        ('{"version": 1}', "servers"),
        ('{"version": 2, "servers": {}}', "version 2; this grue reads version 1"),
        ('{"version": 1, "servers": {"a": {"t": {}}}}', "$.servers[...][...]"),
        ('{"version": 1, "servers": {}, "more": 1}', "more"),
    ],
)
def test_what_is_no_tool_lock_is_refused_and_left_alone(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mcp_tools.lock"
    path.write_text(text)
    for use in (lambda: read_tool_lock(path), lambda: write(path, {"a": [tool("x")]})):
        with pytest.raises(MCPConfigError) as error:
            use()
        assert words in str(error.value)
        assert str(path) in str(error.value)
    assert path.read_text() == text


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MCPConfigError, match="Cannot write"):
        write(tmp_path / "no" / "mcp_tools.lock", {"a": [tool("x")]})


# --- What the configuration makes of it ---


def configured(folder: Path, **settings: str) -> GameConfiguration:
    return GameConfiguration(mcp_enabled=True, project_dir=folder, mcp_config_file="sub/mcp.json", **settings)


def test_the_lock_lies_next_to_the_file_of_servers(tmp_path: Path) -> None:
    config = configured(tmp_path)
    assert lock_path(config.mcp_config_path) == tmp_path / "sub" / "mcp_tools.lock"
    assert tool_lock(config) is None
    (tmp_path / "sub").mkdir()
    tool_lock_file.write(lock_path(config.mcp_config_path), {"a": [tool("x")]})
    lock = tool_lock(config)
    assert lock is not None
    assert lock.pins("a") == lock_of([tool("x")])


@pytest.mark.parametrize(
    ("setting", "policy"), [("report", "report"), ("refuse", "refuse"), ("off", "ignore")]
)
def test_the_setting_decides_what_drift_leads_to(tmp_path: Path, setting: str, policy: str) -> None:
    assert on_tool_drift(configured(tmp_path, mcp_tool_lock=setting)) == policy
    assert on_tool_drift(configured(tmp_path)) == "report"


def test_off_does_not_look_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mcp_tools.lock").write_text("{")
    assert tool_lock(configured(tmp_path, mcp_tool_lock="off")) is None


def test_to_refuse_without_a_lock_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MCPConfigError, match="grue tools --lock"):
        tool_lock(configured(tmp_path, mcp_tool_lock="refuse"))


def test_the_key_is_checked_where_it_enters(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text('[tool.zorkgpt.mcp]\ntool_lock = "refuse"\n')
    assert GameConfiguration.from_toml(project).mcp_tool_lock == "refuse"
    project.write_text('[tool.zorkgpt.mcp]\ntool_lock = "strict"\n')
    with pytest.raises(MCPConfigError) as error:
        GameConfiguration.from_toml(project)
    assert "[tool.zorkgpt.mcp] tool_lock is the text 'strict'" in str(error.value)
    assert "'report', 'refuse' or 'off'" in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 1, "servers": {}, "\\ud800": 2}',
        '{"version": "\\ud800", "servers": {}}',
        '{"version": 1, "servers": {"a": {"t": {"\\ud800": ""}}}}',
        '{"version": 1, "servers": {"a": {"t": ' + "[" * 900 + "]" * 900 + "}}}",
    ],
)
def test_half_a_surrogate_pair_or_deep_nesting_is_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mcp_tools.lock"
    path.write_text(text)
    with pytest.raises(MCPConfigError, match=r"is not a tool lock: .*remove it and approve the tools again"):
        read_tool_lock(path)


def test_a_folder_or_an_endless_file_in_its_place_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "mcp_tools.lock"
    path.mkdir()
    with pytest.raises(MCPConfigError, match="not a regular file"):
        read_tool_lock(path)
    path.rmdir()
    path.symlink_to("/dev/zero")
    with pytest.raises(MCPConfigError, match="not a regular file"):
        read_tool_lock(path)
    path.unlink()
    path.symlink_to("gone")
    with pytest.raises(MCPConfigError, match="a link to a file that does not exist"):
        read_tool_lock(path)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_lock_that_cannot_be_looked_at_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    if quiet:
        hide_errors_of_paths(monkeypatch)
    with pytest.raises(MCPConfigError, match=r"Cannot read .*: File name too long"):
        read_tool_lock(tmp_path / ("x" * 300) / "mcp_tools.lock")


def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    target = tmp_path / "dotfiles" / "lock"
    target.write_text('{"version": 1, "servers": {}}')
    link = tmp_path / "mcp_tools.lock"
    link.symlink_to("dotfiles/lock")
    write(link, {"a": [tool("t")]})
    assert link.is_symlink()
    assert "a" in json.loads(target.read_text())["servers"]


def test_a_note_about_a_name_that_is_no_text_can_be_recorded() -> None:
    pins = lock_of([tool("odd \ud800")])
    tools, (note,) = screen(pins, ServerName("a"), (), "refuse")
    assert (tools, note.tool, note.change) == ((), "odd \ufffd", "removed")
    assert msgspec.json.encode(note)
    offered, notes = screen({}, ServerName("a"), (tool("odd \ud800"), tool("b")), "refuse")
    assert offered == ()
    assert [note.refused for note in notes] == [True, True]
