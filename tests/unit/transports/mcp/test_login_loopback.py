"""The page that a browser gets after a login, and a server that says nothing."""

import http.client
import socket
import urllib.error
import urllib.request
from urllib.parse import quote

import anyio
import pytest

from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp import login
from grue.transports.mcp.login import LoginRefused, Loopback, _Handler


def test_what_an_authorization_server_says_is_text_on_the_page() -> None:
    with Loopback() as loopback:
        hostile = "<script>alert(document.domain)</script>"
        page = urllib.request.urlopen(f"{loopback.uri}?error={quote(hostile)}", timeout=30).read().decode()
        returned = loopback.wait(30)
    assert "<script" not in page
    assert "&lt;script&gt;alert(document.domain)&lt;/script&gt;" in page
    assert returned is not None
    assert returned["error"] == hostile


def test_a_return_counts_before_its_page_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = []

    def show(handler: _Handler, _refused: str) -> None:
        with pytest.raises(urllib.error.HTTPError) as second:
            urllib.request.urlopen(f"{loopback.uri}?code=second", timeout=30)
        refused.append(second.value.code)
        second.value.close()
        raise BrokenPipeError

    monkeypatch.setattr(_Handler, "_show_page", show)
    with Loopback() as loopback:
        with pytest.raises(http.client.RemoteDisconnected):
            urllib.request.urlopen(f"{loopback.uri}?code=first", timeout=30)
        returned = loopback.wait(30)
    assert refused == [404]
    assert returned is not None
    assert returned["code"] == "first"


def test_a_request_without_an_answer_is_no_return() -> None:
    with Loopback() as loopback:
        for query in ("", "?state=a", "?code="):
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(f"{loopback.uri}{query}", timeout=30)
        page = urllib.request.urlopen(f"{loopback.uri}?code=first", timeout=30).read()
        returned = loopback.wait(30)
    assert returned == {"code": "first"}
    assert b"logged in" not in page, "that is not known yet"


def test_a_long_code_comes_whole() -> None:
    with Loopback() as loopback:
        urllib.request.urlopen(f"{loopback.uri}?code={'c' * 20_000}", timeout=30).read()
        returned = loopback.wait(30)
    assert returned == {"code": "c" * 20_000}


def test_only_the_first_return_counts() -> None:
    with Loopback() as loopback:
        urllib.request.urlopen(f"{loopback.uri}?code=first", timeout=30).read()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{loopback.uri}?code=second", timeout=30)
        returned = loopback.wait(30)
    assert returned is not None
    assert returned["code"] == "first"


def test_a_connection_that_a_browser_breaks_off_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with Loopback() as loopback:
        try:
            raise ConnectionResetError
        except ConnectionResetError:
            loopback.handle_error(None, ("127.0.0.1", 1))
    assert capfd.readouterr().err == ""


def test_a_server_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_ASK_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = HttpServer(name="far", url=f"http://127.0.0.1:{silent.getsockname()[1]}/mcp")
        with pytest.raises(LoginRefused, match=r"cannot be reached: no answer within 0\.1 s$"):
            anyio.run(login._refusal, server)
