"""What an `HttpServer` shows of itself, and what it keeps to itself."""

import ast
import inspect
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from grue.errors import MCPConfigError
from grue.runtime.secrets.secret_forms import secrets_in
from grue.tool_sessions.server_specs import HttpServer, StdioServer

KEY = "0123456789abcdef0123"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h/mcp", "http://h/mcp"),
        ("https://user:hunter2@h:8443/mcp/?token=hunter2#hunter2", "https://h:8443/mcp/"),
        (f"https://h/api/{KEY}/mcp", "https://h/api/[...]/mcp"),
        ("https://h/model-context-protocol-endpoint", "https://h/model-context-protocol-endpoint"),
        ("http://[::1]:80/mcp", "http://[::1]:80/mcp"),
        ("HTTP://h", "http://h"),
    ],
)
def test_the_address_shows_where_and_no_secret(url: str, address: str) -> None:
    server = HttpServer(name="far", url=url, headers={"X-Key": "hunter2"})
    assert server.address == address
    assert repr(server) == f"HttpServer(name='far', url={address!r}, transport='auto')"
    assert "hunter2" not in repr(server)


def test_all_that_may_be_secret_is_known_by_a_name_that_says_so() -> None:
    server = HttpServer(
        name="far",
        url=f"https://user:pass%20word%20pass@h/{KEY}/mcp?api_key=query-secret&plain=not-a-secret"
        "&code=of_a_function-01234567%3D%3D&api-version=2024-08-01-preview",
        headers={
            "Authorization": "Bearer header-secret",
            "X-Api-Key": "second-secret",
            "Accept": "text/plain",
        },
    )
    assert secrets_in(server.named_values()) == {
        "Authorization": "Bearer header-secret",
        "Authorization token": "header-secret",
        "X-Api-Key": "second-secret",
        "api_key": "query-secret",
        "URL password": "pass word pass",
        "URL key 1": KEY,
        "URL key 2": "of_a_function-01234567==",
    }


def test_a_key_in_base64_is_a_secret_in_a_query_under_any_name() -> None:
    key = f"{'aB3/' * 5}{'Cd+9' * 5}xyz="
    url = f"https://h/mcp?sig={quote(key, safe='')}&sv=2024-01-01&root=docs/Guide2/introduction"
    assert secrets_in(HttpServer(name="far", url=url).named_values()) == {"URL key 1": key}


def test_a_server_has_a_name_and_its_arguments_may_be_a_list() -> None:
    given: Any = ["-y", "thing"]
    server = StdioServer(command="/usr/bin/npx", args=given)
    assert (server.name, server.args) == ("npx", ("-y", "thing"))
    assert HttpServer(url="https://tools.test/mcp").name == "tools.test"
    assert StdioServer(command="x", name="mine").name == "mine"


def test_an_address_that_cannot_be_read_is_refused_also_without_a_name() -> None:
    with pytest.raises(MCPConfigError, match="its URL cannot be read"):
        HttpServer(url="https://[::1/x")


def test_space_around_the_value_of_a_header_is_not_kept_because_it_cannot_be_sent() -> None:
    server = HttpServer(url="http://h/mcp", headers={"Authorization": " Bearer k ", "X": "a b\t"})
    assert server.headers == {"Authorization": "Bearer k", "X": "a b"}


def test_a_relative_working_directory_begins_where_the_server_was_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program may change its own working directory before the server starts."""
    monkeypatch.chdir(tmp_path)
    server = StdioServer("a", cwd="here")
    monkeypatch.chdir("/")
    assert msgspec.structs.replace(server, name="b").cwd == str(tmp_path / "here")
    assert (StdioServer("a").cwd, StdioServer("a", cwd="").cwd) == (None, "")


def test_the_declared_arguments_of_a_local_server_are_its_fields() -> None:
    """Type checkers read the `__init__` that is declared for them. It takes paths, which become texts."""
    tree = ast.parse(inspect.getsource(StdioServer))
    declared = next(
        each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    )
    names = [each.arg for each in (*declared.args.args[1:], *declared.args.kwonlyargs)]
    assert sorted(names) == sorted(StdioServer.__struct_fields__)
    types = {each.arg: ast.unparse(each.annotation or each) for each in declared.args.args[1:3]}
    assert types == {"command": "str | PathLike[str]", "args": "Sequence[str | PathLike[str]]"}
    server = StdioServer(
        Path("bin/it"), [Path("a")], env={"HOME": Path("/h")}, cwd=Path("b"), sandbox="files"
    )
    assert (server.command, server.args, server.cwd) == ("bin/it", ("a",), str(Path("b").absolute()))
