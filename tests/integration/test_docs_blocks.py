"""The code in the documents: blocks run as pasted, and blocks of a file are that file's code."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from obliging_llm import oblige

from grue.servers import think
from grue.settings import MCPConfig
from grue.testing.llm_server import ScriptedLlmServer

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
_MARKED = re.compile(
    r"^<!-- (?P<mark>[\w/.]+) -->\n```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_ENDPOINT = re.compile(r"http://(127\.0\.0\.1|localhost):11434/v1")


def marked(mark: str) -> list[Any]:
    found = []
    for page in PAGES:
        for number, block in enumerate(_MARKED.finditer(page.read_text(encoding="utf-8"))):
            if (block["mark"] == "run") is (mark == "run"):
                name = f"{page.relative_to(DOCS)}-{number}"
                found.append(pytest.param(block["mark"], block["code"], id=name))
    return found


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ScriptedLlmServer(oblige) as server:
        yield server.base_url


@pytest.mark.parametrize(("_mark", "code"), marked("run"))
def test_a_block_runs_as_pasted(
    _mark: str, code: str, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the endpoint is another one. The servers of mcp_config.json are the bundled one."""
    monkeypatch.chdir(tmp_path)
    mind = {"command": sys.executable, "args": [str(think.__file__)]}
    Path("mcp_config.json").write_text(json.dumps({"mcpServers": {"mind": mind}}), encoding="utf-8")
    exec(compile(_ENDPOINT.sub(endpoint, code), "pasted", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(("mark", "code"), marked("file"))
def test_a_block_of_a_file_is_that_files_code(mark: str, code: str) -> None:
    path = DOCS / "examples" / mark
    if path.suffix == ".py" and path.exists():
        assert code.strip() in path.read_text(encoding="utf-8")
    else:
        assert mark == "server.py", f"there is no docs/examples/{mark}"


def test_the_quick_starts_server_answers(tmp_path: Path) -> None:
    from grue import StdioServer, ToolClient

    page = (DOCS / "start.md").read_text(encoding="utf-8")
    (server,) = (block["code"] for block in _MARKED.finditer(page) if block["mark"] == "server.py")
    (tmp_path / "server.py").write_text(server, encoding="utf-8")
    (config,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (tmp_path / "mcp_config.json").write_text(config, encoding="utf-8")
    assert [*MCPConfig.from_file(tmp_path / "mcp_config.json").mcpServers] == ["mind", "pantry"]
    pantry = StdioServer(name="pantry", command=sys.executable, args=(str(tmp_path / "server.py"),))
    with ToolClient({"pantry": pantry}) as client:
        assert "12" in str(client.call("pantry.stock", {"article": "eggs"}))
