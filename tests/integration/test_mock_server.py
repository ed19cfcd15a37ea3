"""The mock server as a user runs it: over stdio and HTTP, from a test, from the command line, with grue."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import grue, mock_server

pytest.importorskip("mcp", reason="the mock server needs the extra: pip install 'grue[mcp]'")

from grue import LlmSettings, Runner, ToolClient, TurnLimits, TurnRequest
from grue.messages import SessionOpened
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply
from grue.testing.mock_server import MockServer

DEADLINE_S = 150
WIRES = ("stdio", "http", "sse")
OWN = """
from grue.testing.mock_server import MockServer

shop = MockServer("shop")

@shop.tool()
def price(article: str) -> int:
    "Return the price of an article."
    return len(article)
"""


@pytest.fixture(params=WIRES)
def reference(
    nothing_left: None,
    request: pytest.FixtureRequest,
    mock_mcp_server: Callable[..., Any],
    mock_mcp_process: Callable[..., Any],
) -> Iterator[Any]:
    """The reference server, with two items in a page, over each wire."""
    if request.param == "stdio":
        whole = request.function is test_a_client_sees_the_same_server_over_each_wire
        yield (mock_mcp_process if whole else mock_server)("--page-size", "2")
    else:
        yield mock_mcp_server(transport=request.param, page_size=2)


@pytest.mark.slow
def test_a_client_sees_the_same_server_over_each_wire(reference: Any) -> None:
    with ToolClient({"ref": reference}) as client:
        names = [tool.name for tool in client.tools()]
        assert len(names) == len(set(names)) > 15
        assert client.call("ref.add", {"a": 2, "b": 3}).content == {"result": 5}
        wrong = client.call("ref.add", {"a": "two", "b": 3})
        assert wrong.is_error
        assert '"two" is not of type "integer"' in str(wrong.error_message)
        assert client.call("ref.test_error_handling", {}).is_error
        blocks = client.call("ref.test_multiple_content_types", {}).content
        assert [block["type"] for block in blocks] == ["text", "image", "resource"]


@pytest.mark.slow
def test_a_server_without_initialize_is_opened_over_stdio(nothing_left: None) -> None:
    with ToolClient({"ref": mock_server("--era", "stateless")}) as client:
        opened = client.connect("ref")["ref"]
        assert isinstance(opened, SessionOpened)
        assert opened.protocol_version == "2026-07-28"
        assert client.call("ref.add", {"a": 2, "b": 3}).content == {"result": 5}


@pytest.mark.slow
def test_a_call_that_waits_too_long_is_cancelled(reference: Any) -> None:
    with ToolClient({"ref": reference}, limits=TurnLimits(tool_call_timeout_s=0.3)) as client:
        assert "timed out" in str(client.call("ref.wait", {"seconds": 600}).error_message)


@pytest.mark.slow
def test_a_turn_calls_its_tools(reference: Any) -> None:
    replies = [tool_calls_reply(("ref.echo", {"text": "hello"})), text_reply("done")]
    with ScriptedLlmServer(replies) as llm:
        runner = Runner(llm=LlmSettings(base_url=llm.base_url, model="m"), servers={"ref": reference})
        outcome = runner.run_turn(TurnRequest(system="s", user="u"))
    assert outcome.tool_calls[0].result.content == {"result": "hello"}


def test_functions_of_a_test_are_tools(mock_mcp_server: Callable[..., Any]) -> None:
    shop = MockServer("shop")

    @shop.tool()
    def price(article: str) -> int:
        return len(article)

    with pytest.raises(TypeError, match="give page_size to the MockServer itself"):
        mock_mcp_server(shop, page_size=2)
    with ToolClient({"shop": mock_mcp_server(shop)}) as client:
        assert client.call("shop.price", {"article": "lamp"}).content == {"result": 4}


def _serve(*arguments: str, cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "grue", "mock-server", *arguments],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )


@pytest.mark.slow
def test_the_command_serves_a_server_of_the_users_until_it_is_interrupted(tmp_path: Path) -> None:
    from grue import HttpServer

    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    server = _serve("mine.py:shop", "--http", "0", cwd=tmp_path)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)
        with ToolClient({"shop": HttpServer(name="shop", url=url)}) as client:
            assert client.call("shop.price", {"article": "lamp"}).content == {"result": 4}
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=DEADLINE_S)
    finally:
        server.kill()
    assert (server.returncode, said) == (130, "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Choose one: --stdio, or --http PORT"),
        (("--stdio", "--http", "0"), "Choose one: --stdio, or --http PORT"),
        (("--stdio", "--sse"), "leave out --stdio or --sse"),
        (("nothing.py:shop", "--stdio"), "there is no file 'nothing.py'"),
        (("no_such_module:shop", "--stdio"), "there is no module 'no_such_module'"),
        (("shop", "--stdio"), "write MODULE:NAME or FILE.py:NAME"),
        (("json:loads", "--stdio"), "'loads' in 'json' is not a MockServer"),
        (("--stdio", "--without", "toys"), "there is no feature 'toys'"),
        (("shop.py:shop", "--stdio", "--page-size", "2"), "set them in your MockServer(...)"),
        (("--stdio", "--era", "old"), "'old' is not one of 'initialize'"),
    ],
)
@pytest.mark.slow
def test_what_is_wrong_is_one_sentence(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = grue("mock-server", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
