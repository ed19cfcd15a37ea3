"""Tables that the YAML files of hosts share, under any keys, with the line of what is wrong."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, field

from grue import StdioServer, ToolRule
from grue.config.documents import Document
from grue.config.yaml_tables import ModelTable, ServersTable, model_of, policy_of, servers_of
from grue.errors import MCPConfigError
from grue.hosting import read_yaml

pytest.importorskip("yaml", reason="YAML needs the extra: pip install 'grue[yaml]'")


class Desk(Struct, forbid_unknown_fields=True):
    """A file of some host."""

    clerk: ModelTable = field(default_factory=ModelTable)
    drawers: ServersTable = field(default_factory=ServersTable)
    rules: dict[str, Any] = field(default_factory=dict)


def desk(folder: Path, text: str) -> tuple[Document, Desk]:
    path = folder / "desk.yaml"
    path.write_text(text)
    document = read_yaml(path)
    return document, document.convert(Desk)


def test_a_model_has_what_the_table_says_and_defaults_for_the_rest(tmp_path: Path) -> None:
    document, table = desk(tmp_path, "clerk: {name: m, temperature: 0.5, wire_format: messages}")
    llm = model_of(document, ("clerk",), table.clerk)
    assert (llm.model, llm.temperature, llm.wire) == ("m", 0.5, "messages")
    wrong, table = desk(tmp_path, "clerk:\n  name: m\n  base_url: ftp://x")
    with pytest.raises(MCPConfigError, match=r"desk\.yaml, line 3: clerk\.base_url should be"):
        model_of(wrong, ("clerk",), table.clerk)


def test_servers_are_read_in_order_and_may_be_optional_or_off(tmp_path: Path) -> None:
    text = (
        "drawers:\n  servers:\n    b: {command: b, required: false}\n    a: {command: a, timeout_seconds: 7}"
    )
    document, table = desk(tmp_path, text)
    servers, optional = servers_of(document, ("drawers",), table.drawers)
    assert (list(servers), optional) == (["b", "a"], {"b"})
    assert isinstance(servers["a"], StdioServer)
    assert servers["a"].options.startup_timeout_s == 7
    off, table = desk(tmp_path, text.replace("drawers:", "drawers:\n  enabled: false"))
    assert servers_of(off, ("drawers",), table.drawers) == ({}, frozenset())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "config_file: x\n  servers: {a: {command: b}}",
            "line 2: drawers.config_file: keep this or drawers.servers",
        ),
        ("servers:\n    a:\n      comand: b", "line 3: "),
        ("servers:\n    a: b", "line 3: "),
        (
            "servers:\n    a:\n      command: b\n      required: 2",
            "line 5: drawers.servers.a.required: it should",
        ),
    ],
)
def test_a_wrong_entry_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    document, table = desk(tmp_path, f"drawers:\n  {text}")
    with pytest.raises(MCPConfigError) as caught:
        servers_of(document, ("drawers",), table.drawers)
    assert said in str(caught.value)


def test_a_policy_names_the_line_of_a_wrong_rule(tmp_path: Path) -> None:
    document, table = desk(tmp_path, "rules:\n  rules:\n    - {tools: a, verdict: ask}")
    policy = policy_of(document, ("rules",), table.rules)
    assert policy.rules == (ToolRule(tools=("a",), verdict="ask"),)
    document, table = desk(tmp_path, "rules:\n  rules:\n    - tools: a\n    - verdit: ask")
    with pytest.raises(MCPConfigError, match=r"line 4: rules: .*verdit"):
        policy_of(document, ("rules",), table.rules)


def test_the_error_for_an_absent_file_of_servers_names_no_setting_of_another_file(tmp_path: Path) -> None:
    document, table = desk(tmp_path, "drawers: {config_file: absent.json}")
    with pytest.raises(MCPConfigError, match=r"absent\.json was not found") as refused:
        servers_of(document, ("drawers",), table.drawers)
    assert "pyproject" not in str(refused.value)
