"""The cache of listings: what is stored and for whom, and every file that is left out."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from grue.messages import ServerName, ToolDefinition
from grue.policies import ToolAnnotations
from grue.tool_sessions.connection import SeenListing
from grue.tool_sessions.oauth_settings import OAuth
from grue.tool_sessions.server_specs import HttpServer, McpServer, ServerOptions, StdioServer
from grue.transports.mcp.listing import MAX_BYTES, ListingCache, cache_folder

NAME = ServerName("s")
SECRET = "sk-0123456789abcdef"
PROGRAM = StdioServer(name="s", command="npx", args=("-y", "p"), env={"KEY": SECRET}, cwd="/srv")
URL = HttpServer(name="s", url="https://example.org/mcp", headers={"Authorization": f"Bearer {SECRET}"})
LISTED = (
    ToolDefinition(server=NAME, tool="look", input_schema={"type": "object"}, description="Look around."),
    ToolDefinition(
        server=NAME, tool="go", input_schema={"type": "object"}, annotations=ToolAnnotations(read_only=False)
    ),
)
TOOLS = SeenListing(LISTED, "2026-07-28")


@pytest.fixture
def cache(tmp_path: Path) -> ListingCache:
    return ListingCache(tmp_path / "cache" / "listings")


def stored(cache: ListingCache) -> Path:
    (path,) = cache.folder.glob("*.json")
    return path


@pytest.mark.parametrize("server", [PROGRAM, URL])
def test_what_was_stored_is_loaded_under_any_name(cache: ListingCache, server: McpServer) -> None:
    assert cache.load(NAME, server) is None
    assert not cache.folder.exists(), "looking creates nothing"
    cache.save(server, TOOLS)
    assert cache.load(NAME, server) == TOOLS
    other = ServerName("other")
    assert cache.load(other, replace(server, name=other)) == replace(
        TOOLS, tools=tuple(replace(t, server=other) for t in LISTED)
    )
    assert (cache.count(), list(cache.faults())) == (1, [])


@pytest.mark.parametrize(
    "other",
    [
        replace(PROGRAM, command="uvx"),
        replace(PROGRAM, args=("-y", "q")),
        replace(PROGRAM, args=("-y p",)),
        replace(PROGRAM, env={"KEY": "another"}),
        replace(PROGRAM, cwd="/"),
        replace(PROGRAM, inherit_env="safe"),
        replace(PROGRAM, options=ServerOptions(include=("look",))),
        replace(URL, url="https://example.org/other"),
        replace(URL, headers={"Authorization": "Bearer another"}),
        replace(URL, auth=OAuth(client_id="c")),
        URL,
    ],
)
def test_a_server_that_is_configured_otherwise_has_a_listing_of_its_own(
    cache: ListingCache, other: McpServer
) -> None:
    before = PROGRAM if isinstance(other, StdioServer) or other is URL else URL
    cache.save(before, TOOLS)
    assert cache.load(NAME, other) is None


def test_a_file_of_before_revisions_were_stored_is_read(cache: ListingCache) -> None:
    cache.save(PROGRAM, SeenListing(()))
    stored(cache).write_bytes(b'{"version":1,"tools":[]}')
    assert cache.load(NAME, PROGRAM) == SeenListing((), "")


def test_a_private_listing_is_stored_unless_one_logs_in(cache: ListingCache) -> None:
    private = SeenListing(LISTED, "2026-07-28", 1e9, private=True)
    login = replace(URL, auth=OAuth(client_id="c"))
    for server in (PROGRAM, URL, login):
        cache.save(server, private)
    assert cache.load(NAME, PROGRAM) == cache.load(NAME, URL) == replace(private, private=False)
    assert cache.load(NAME, login) is None
    cache.save(login, TOOLS)
    assert cache.load(NAME, login) == TOOLS
    cache.save(login, private)
    assert cache.load(NAME, login) is None, "the one of before is removed"


def test_no_configured_value_is_stored_and_nobody_else_can_read_it(cache: ListingCache) -> None:
    for server in (PROGRAM, URL):
        cache.save(server, TOOLS)
    for path in cache.folder.iterdir():
        assert SECRET.encode() not in path.read_bytes()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.name == "key" or len(path.stem) == 64
    assert cache.folder.stat().st_mode & 0o777 == 0o700


def test_another_machine_gives_the_same_server_another_name(cache: ListingCache) -> None:
    cache.save(PROGRAM, TOOLS)
    first = stored(cache)
    (cache.folder / "key").unlink()
    assert cache.load(NAME, PROGRAM) is None
    first.unlink()
    cache.save(PROGRAM, TOOLS)
    assert stored(cache) != first


def link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


FAULTS: dict[str, Callable[[Path], object]] = {
    "damaged": lambda path: path.write_bytes(b'{"version":1,"tools":[{'),
    "not text": lambda path: path.write_bytes(b'{"version":1,"tools":["\xff"]}'),
    "another form": lambda path: path.write_bytes(b'{"version":2,"tools":[]}'),
    "deep": lambda path: path.write_bytes(b'{"version":1,"tools":[{"a":' + b"[" * 100_000),
    "empty": lambda path: path.write_bytes(b""),
    "huge": lambda path: os.truncate(path, MAX_BYTES + 1),
    "others may write it": lambda path: path.chmod(0o666),
    "its group may write it": lambda path: path.chmod(0o660),
    "a link": link,
    "a pipe": pipe,
    "others may write its folder": lambda path: path.parent.chmod(0o777),
}


@pytest.mark.parametrize("harm", FAULTS.values(), ids=FAULTS)
def test_a_file_that_cannot_be_trusted_is_left_out_and_named(
    cache: ListingCache, harm: Callable[[Path], object]
) -> None:
    cache.save(PROGRAM, TOOLS)
    path = stored(cache)
    harm(path)
    assert cache.load(NAME, PROGRAM) is None
    (said,) = (fault for fault in cache.faults() if ".elsewhere" not in fault)
    assert said.startswith((f"{path} is not used: ", f"{path.parent} is not used: "))
    path.parent.chmod(0o700)
    cache.save(PROGRAM, TOOLS)
    assert cache.load(NAME, PROGRAM) == TOOLS, "it is replaced"


def test_a_damaged_key_is_replaced(cache: ListingCache) -> None:
    cache.save(PROGRAM, TOOLS)
    (cache.folder / "key").write_bytes(b"short")
    assert cache.load(NAME, PROGRAM) is None
    cache.save(PROGRAM, TOOLS)
    assert cache.load(NAME, PROGRAM) == TOOLS


def test_files_of_another_user_are_left_out(cache: ListingCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.save(PROGRAM, TOOLS)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert cache.load(NAME, PROGRAM) is None
    assert list(cache.faults()) == [f"{cache.folder} is not used: it belongs to another user"]
    cache.save(PROGRAM, SeenListing(LISTED[:1]))
    monkeypatch.undo()
    assert cache.load(NAME, PROGRAM) == TOOLS


def test_what_cannot_be_stored_is_not_and_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    inside_a_file = ListingCache(tmp_path / "file" / "listings")
    inside_a_file.save(PROGRAM, TOOLS)
    assert inside_a_file.count() == 0
    (tmp_path / "linked").symlink_to(tmp_path)
    ListingCache(tmp_path / "linked").save(PROGRAM, TOOLS)
    assert not list(tmp_path.glob("*.json"))
    (said,) = ListingCache(tmp_path / "linked").faults()
    assert said.endswith("is not used: it is not a folder")
    many = tuple(replace(LISTED[0], tool=f"t{n}", description="x" * 200_000) for n in range(30))
    large = ListingCache(tmp_path / "large")
    large.save(PROGRAM, SeenListing(many))
    assert large.count() == 0
    assert list(large.faults()) == []


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GRUE_CACHE", raising=False)
    assert cache_folder() == tmp_path / "grue" / "listings"
    monkeypatch.setenv("GRUE_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine" / "listings"


def test_a_user_without_a_home_folder_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "GRUE_CACHE", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert ListingCache().load(NAME, PROGRAM) is None


def test_a_folder_that_cannot_be_listed_is_a_fault(
    cache: ListingCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_folder: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    cache.save(PROGRAM, TOOLS)
    monkeypatch.setattr(Path, "iterdir", refused)
    assert list(cache.faults()) == [f"{cache.folder} is not used: Permission denied"]
