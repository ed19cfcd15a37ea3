"""`auth` of a server by URL: what is read, what contradicts itself, and no secret in a text."""

import json
from pathlib import Path
from typing import Any

import pytest

from grue.config.mcp_servers import MCPConfig, to_tool_server
from grue.errors import MCPConfigError
from grue.tool_sessions.oauth_settings import OAuth
from grue.tool_sessions.server_specs import HttpServer

SECRET = "hunter2hunter2"
IDENTITY = {
    "grant": "identity_assertion",
    "client_id": "me",
    "client_secret": "x",
    "issuer": "https://i",
    "identity_provider": "https://id",
    "identity_client_id": "me",
}


def auth_of(folder: Path, entry: dict[str, Any], **environ: str) -> OAuth | None:
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"far": {"url": "https://h/mcp", **entry}}}))
    config = MCPConfig.from_file(file, environ=environ)
    assert SECRET not in repr(config)
    server = to_tool_server("far", config.server("far"))
    assert isinstance(server, HttpServer)
    assert SECRET not in repr(server)
    assert SECRET not in repr(server.auth)
    return server.auth


def test_a_server_without_credentials_may_ask_for_a_login(tmp_path: Path) -> None:
    assert auth_of(tmp_path, {}) == OAuth()
    assert auth_of(tmp_path, {"auth": True}) == OAuth()
    assert auth_of(tmp_path, {"auth": False}) is None
    assert auth_of(tmp_path, {"headers": {"authorization": f"Bearer {SECRET}"}}) is None


def test_credentials_of_a_program(tmp_path: Path) -> None:
    entry = {"grant": "client_credentials", "client_id": "me", "client_secret": "${S}", "issuer": "https://i"}
    found = auth_of(tmp_path, {"auth": entry}, S=SECRET)
    assert found == OAuth(
        grant="client_credentials", client_id="me", client_secret=SECRET, issuer="https://i"
    )
    (tmp_path / "key.pem").write_text(SECRET)
    with_key = {"grant": "client_credentials", "client_id": "me", "private_key_file": "key.pem"}
    found = auth_of(tmp_path, {"auth": with_key})
    assert found == OAuth(grant="client_credentials", client_id="me", private_key=SECRET)
    server = HttpServer(name="far", url="https://h/mcp", auth=found)
    assert SECRET in server.named_values().values(), "it is redacted"


def test_the_identity_token_of_a_person(tmp_path: Path) -> None:
    secrets = {"identity_token": "${S}", "identity_client_secret": "${S}"}
    found = auth_of(tmp_path, {"auth": {**IDENTITY, **secrets}}, S=SECRET)
    assert found is not None
    assert (found.identity_token, found.identity_client_secret) == (SECRET, SECRET)
    found = auth_of(tmp_path, {"auth": {**IDENTITY, "identity_token_file": "token"}})
    assert found is not None
    assert found.identity_token_file == str(tmp_path / "token")


def test_where_tokens_are_kept(tmp_path: Path) -> None:
    assert auth_of(tmp_path, {"auth": {"keep_tokens_in": "keyring"}}) == OAuth(keep_tokens_in="keyring")


@pytest.mark.parametrize(
    ("auth", "words"),
    [
        ({"grant": "client_credentials"}, "needs a client_id, and a client_secret or a private_key"),
        ({"client_secret": "x"}, "a client_secret needs its client_id"),
        ({"client_id": "x", "private_key": "x"}, "for the grant client_credentials"),
        ({"client_id": "x", "private_key_file": "none.pem"}, "private_key_file cannot be read"),
        ({"client_id": "x", "private_key_file": "a\0b"}, "private_key_file cannot be read"),
        ({"private_key": "x", "private_key_file": "y"}, "keep only one"),
        ({"grant": "identity_assertion", "client_id": "x"}, "needs client_secret, issuer, identity_provider"),
        ({**IDENTITY}, "either an identity_token or an identity_token_file"),
        ({**IDENTITY, "identity_token": "x", "identity_provider": "http://id"}, "should be an https:// URL"),
        ({"identity_token": "x"}, "identity_token is for the grant identity_assertion"),
        ({"keep_tokens_in": "pocket"}, "keep_tokens_in"),
        ({"redirect_port": 70000}, "redirect_port"),
        ({"scopes": "x"}, "scopes"),
    ],
)
def test_what_contradicts_itself_is_named(tmp_path: Path, auth: dict[str, Any], words: str) -> None:
    with pytest.raises(MCPConfigError, match=words):
        auth_of(tmp_path, {"auth": auth})


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        (
            {"grant": "x"},
            "auth.grant should be 'authorization_code', 'client_credentials' or 'identity_assertion'.",
        ),
        ({"client_id": 3}, "auth.client_id should be a string, not a number."),
        ({"scopes": "x"}, "auth.scopes is not a known key."),
        ({"redirect_port": 70000}, "auth.redirect_port should be less than or equal to 65535."),
        ({"redirect_port": "x"}, "auth.redirect_port should be a whole number, not a string."),
        (
            {"private_key": "x", "private_key_file": "y"},
            "auth has a private_key and a private_key_file: keep only one.",
        ),
        (3, "auth should be an object, or true or false, not a number."),
    ],
)
def test_one_sentence_says_what_is_wrong_with_it(tmp_path: Path, auth: Any, problem: str) -> None:
    with pytest.raises(MCPConfigError) as refused:
        auth_of(tmp_path, {"auth": auth})
    assert str(refused.value).partition(": MCP server 'far': ")[2] == problem


def test_a_program_has_no_auth(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"near": {"command": "x", "auth": {"client_id": "y"}}}}))
    assert MCPConfig.from_file(file).warnings == (
        "MCP server 'near': 'auth' has no effect on a server with a 'command'.",
    )


@pytest.mark.parametrize("argument", ["grant", "secret_method", "keep_tokens_in"])
def test_a_wrong_word_given_in_python_is_not_shown_for_it_may_be_a_secret(argument: str) -> None:
    with pytest.raises(MCPConfigError, match=f"^OAuth: {argument} should be one of [a-z_, ]+\\.$") as refused:
        OAuth(**{argument: SECRET})  # type: ignore[arg-type]
    assert SECRET not in str(refused.value)
