"""When a stored token counts as ended."""

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from grue.tool_sessions.oauth_settings import OAuth
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.token_store import TokenRecord, TokenStore


@pytest.mark.parametrize(
    ("life_s", "age_s", "ends"),
    [
        (3600.0, 0.0, False),
        (3600.0, 3569.0, False),
        (3600.0, 3571.0, True),
        (30.0, 0.0, False),
        (30.0, 22.0, False),
        (30.0, 23.0, True),
        (4.0, 2.0, False),
        (0.0, 0.0, True),
    ],
)
def test_a_token_is_renewed_30_s_before_its_end_or_in_its_last_quarter(
    monkeypatch: pytest.MonkeyPatch, life_s: float, age_s: float, ends: bool
) -> None:
    record = TokenRecord(url="http://h/", expires_at=1000.0 + life_s, obtained_at=1000.0)
    monkeypatch.setattr(time, "time", lambda: 1000.0 + age_s)
    assert record.ends_soon() is ends


def test_a_record_is_shown_without_its_secrets() -> None:
    record = TokenRecord(
        url="http://h/", access_token="a1", refresh_token="r1", client={"client_secret": "c1"}
    )
    assert repr(record) == "TokenRecord(url='http://h/')"


def test_a_token_without_an_end_does_not_end() -> None:
    assert not TokenRecord(url="http://h/").ends_soon()


@pytest.mark.parametrize("moment", [1e300, -1e300, float("inf")])
def test_times_stay_within_what_a_clock_shows(moment: float) -> None:
    record = TokenRecord(url="http://h/", expires_at=moment, obtained_at=moment)
    assert record.expires_at is not None
    time.localtime(record.expires_at)
    time.localtime(record.obtained_at)


@pytest.mark.parametrize(
    "content", [b"{", b'{"url": "\xff"}', b'{"url": "u", "client": {"a": ' + b"[" * 100_000]
)
def test_a_damaged_file_counts_as_no_login(tmp_path: Path, content: bytes) -> None:
    store = TokenStore(HttpServer(name="far", url="http://h/"), tmp_path)
    store.file.write_bytes(content)
    assert store.load() is None


@pytest.mark.anyio
async def test_a_file_system_without_locks_keeps_nobody_from_renewing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_file: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    async with TokenStore(HttpServer(name="far", url="http://h/"), tmp_path).locked():
        pass


@pytest.mark.parametrize("token", [{"identity_token_file": "a\0b"}, {"identity_token": "a.\ud800.c"}])
def test_an_identity_token_that_cannot_be_read_is_no_error_until_it_is_needed(
    tmp_path: Path, token: dict[str, str]
) -> None:
    auth = OAuth(
        grant="identity_assertion",
        client_id="c",
        client_secret="s",
        issuer="https://i/",
        identity_provider="https://p/",
        identity_client_id="d",
        **token,
    )
    assert TokenStore(HttpServer("https://h/mcp", auth=auth), tmp_path).load() is None
