"""The server of a page that follows a trace: what is new comes in pieces, and nobody else gets any."""

import errno
import functools
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from story_traces import Story, full_story
from viewer_traces import EpisodeTape, begin, plain_turn

from grue.errors import MCPConfigError, TraceError
from grue.fleet.export import run_episode
from grue.messages import CheckAnswer, ServerEnded, ServerName
from grue.tracing.facts import EpisodeEnded
from grue.tracing.live_server import LiveFeed, LiveServer, serving

pytestmark = pytest.mark.made_up_trace

LONGEST_WAIT_S = 60


@pytest.fixture
def tape(tmp_path: Path) -> Iterator[EpisodeTape]:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        begin(tape)
        yield tape


@pytest.fixture
def server(tape: EpisodeTape, tmp_path: Path) -> Iterator[LiveServer]:
    with LiveFeed(tmp_path / "trace.jsonl") as feed, serving(feed) as server:
        yield server


def get(server: LiveServer, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=LONGEST_WAIT_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def pieces(server: LiveServer, first: int = 0) -> Any:
    return json.loads(get(server, f"/{server.word}/feed?from={first}")[2])


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LONGEST_WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_what_is_new_comes_in_pieces(server: LiveServer, tape: EpisodeTape) -> None:
    first = wait_for(lambda: (found := pieces(server))["pieces"] and found)
    assert [row[7] for row in first["pieces"][0]["messages"]] == ["EpisodeStarted"]
    assert pieces(server, first["next"])["pieces"] == []
    plain_turn(tape)
    later = wait_for(lambda: (found := pieces(server, first["next"]))["pieces"] and found)
    [told] = [row for piece in later["pieces"] for row in piece["messages"] if row[7] == "Decided"]
    assert told[3] == 1
    assert later["pieces"][-1]["turns"][-1]["outcome"] == "answered"
    assert later["over"] is False


def test_the_end_is_said_and_an_image_is_served(tmp_path: Path) -> None:
    trace = full_story(tmp_path / "trace.jsonl")
    with LiveFeed(trace) as feed, serving(feed) as server:
        found = wait_for(lambda: (found := pieces(server))["over"] and found)
        name = json.dumps(found).partition("grue-image:")[2][:32]
        status, headers, body = get(server, f"/{server.word}/image/{name}")
        assert (status, headers["Content-Type"], body[:4]) == (200, "image/png", b"\x89PNG")
        assert get(server, f"/{server.word}/image/{'0' * 32}")[0] == 404


def test_a_server_that_ends_after_the_episode_leaves_it_over(server: LiveServer, tape: EpisodeTape) -> None:
    tape.say(EpisodeEnded(reason="ended", detail="", turns=0))
    tape.say(ServerEnded(server=ServerName("shop")), "shop trace")
    found = wait_for(lambda: "ServerEnded" in json.dumps(found := pieces(server)) and found)
    assert found["over"] is True


def test_an_image_of_damaged_base64_is_not_found(
    server: LiveServer, tape: EpisodeTape, capfd: pytest.CaptureFixture[str]
) -> None:
    tape.say(CheckAnswer(content=f"iVBORw0KGgo{'A' * 62}"))
    found = wait_for(lambda: (found := json.dumps(pieces(server))).count("grue-image:") and found)
    name = found.partition("grue-image:")[2][:32]
    assert get(server, f"/{server.word}/image/{name}")[0] == 404
    assert capfd.readouterr().err == ""


def test_it_is_not_over_before_the_end_is_in_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, written = threading.Event(), threading.Event()
    write_piece = LiveFeed._write_piece

    def write_later(feed: LiveFeed) -> None:
        reached.set()
        written.wait(LONGEST_WAIT_S)
        write_piece(feed)

    monkeypatch.setattr(LiveFeed, "_write_piece", write_later)
    with LiveFeed(full_story(tmp_path / "trace.jsonl")) as feed:
        try:
            assert reached.wait(LONGEST_WAIT_S)
            assert json.loads(feed.answer(0))["over"] is False
        finally:
            written.set()
        assert wait_for(lambda: json.loads(feed.answer(0))["over"])


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:80", ""]
)
def test_a_request_that_names_another_host_gets_nothing(server: LiveServer, host: str) -> None:
    status, _, body = get(server, f"/{server.word}/", Host=host)
    assert status == 403
    assert b"<" not in body


@pytest.mark.parametrize("path", ["/", "/feed", "/x/feed?from=0", "//", "/../", "*", "/%00/"])
def test_nothing_is_served_without_the_random_word(server: LiveServer, path: str) -> None:
    assert get(server, path)[0] == 404


def test_the_page_is_not_served_at_an_address_from_which_it_cannot_ask(server: LiveServer) -> None:
    assert get(server, f"/{server.word}/")[0] == 200
    assert get(server, f"/{server.word}")[0] == 404


@pytest.mark.parametrize("query", ["from=-1", "from=99", "from=x", "from=" + "9" * 5000])
def test_a_piece_that_is_not_there_is_refused(server: LiveServer, query: str) -> None:
    assert get(server, f"/{server.word}/feed?{query}")[0] == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(server: LiveServer, method: str) -> None:
    refused = 403 if method == "POST" else 501  # a mark is taken from the page itself only
    assert get(server, f"/{server.word}/", method)[0] == refused


def test_the_page_may_ask_its_own_server_only_and_cannot_be_framed(server: LiveServer) -> None:
    status, headers, body = get(server, f"/{server.word}/")
    assert status == 200
    policy = body.split(b'content="', 1)[1].split(b'">')[0].decode()
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert get(server, f"/{server.word}/", "HEAD")[2] == b""


def test_it_listens_at_the_loopback_address_only(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_that_cannot_be_used_is_an_error_that_says_what_to_do(
    server: LiveServer, tmp_path: Path
) -> None:
    with LiveFeed(tmp_path / "trace.jsonl") as feed:
        for port in (server.server_port, 99_999):
            with pytest.raises(MCPConfigError, match=r"Cannot listen at .*[^.]\. Choose another --port"):
                LiveServer(feed, port)


@pytest.mark.parametrize(("error", "told"), [(ConnectionResetError(), ""), (KeyError("x"), "Traceback")])
def test_a_connection_that_a_browser_breaks_off_prints_nothing(
    server: LiveServer, capfd: pytest.CaptureFixture[str], error: Exception, told: str
) -> None:
    try:
        raise error
    except type(error):
        server.handle_error(None, ("127.0.0.1", 1))
    said = capfd.readouterr().err
    assert told in said
    assert bool(told) == bool(said)


def test_damage_is_told_to_the_page(server: LiveServer, tmp_path: Path) -> None:
    with (tmp_path / "trace.jsonl").open("a") as file:
        file.write("{damaged\n")
    assert "trace.jsonl, line 3" in wait_for(lambda: pieces(server)["error"])


def test_a_full_disk_is_told_to_the_page(
    tape: EpisodeTape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = LiveFeed(tmp_path / "trace.jsonl")

    def full(line: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(feed._spool, "write", full)
    with feed, serving(feed) as server:
        error = wait_for(lambda: pieces(server)["error"])
        assert error == "The page gets no further messages: No space left on device."
        assert pieces(server)["pieces"] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_is_told_to_the_page_also_if_the_piece_is_small(
    tape: EpisodeTape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", functools.partial(open, "/dev/full", "r+b"))
    with LiveFeed(tmp_path / "trace.jsonl") as feed, serving(feed) as server:
        assert "No space left on device" in wait_for(lambda: pieces(server)["error"])
        assert pieces(server)["pieces"] == []


def test_damage_is_told_to_the_page_also_if_the_disk_is_full(
    tape: EpisodeTape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "trace.jsonl").open("a") as file:
        file.write("{damaged\n")
    feed = LiveFeed(tmp_path / "trace.jsonl")

    def full(line: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(feed._spool, "write", full)
    with feed, serving(feed) as server:
        assert "trace.jsonl, line 3" in wait_for(lambda: pieces(server)["error"])


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text("hello\n")
    with pytest.raises(TraceError):
        LiveFeed(tmp_path / "trace.jsonl")


def test_a_long_trace_comes_in_several_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.tracing.page_feed._MOST_ROWS", 5)
    monkeypatch.setattr("grue.tracing.live_server._MOST_ANSWER_BYTES", 1)
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        Story(tape).write()
    with LiveFeed(tmp_path / "trace.jsonl") as feed, serving(feed) as server:
        seen, first = [], 0
        while len(seen) < 43:
            found = wait_for(lambda at=first: (found := pieces(server, at))["pieces"] and found)
            assert len(found["pieces"]) == 1
            seen += [row[0] for piece in found["pieces"] for row in piece["messages"]]
            first = found["next"]
        assert seen == list(range(1, 44))


def post(server: LiveServer, body: bytes, path: str = "", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=LONGEST_WAIT_S)
    origin = {"Origin": f"http://127.0.0.1:{server.server_port}"}
    try:
        connection.request("POST", path or f"/{server.word}/mark", body, {**origin, **headers})
        return connection.getresponse().status
    finally:
        connection.close()


def test_traces_in_one_folder_have_marks_of_their_own(tmp_path: Path) -> None:
    for name, score in (("one", 1.0), ("other", 0.0)):
        trace = full_story(tmp_path / f"{name}.jsonl")
        with LiveFeed(trace) as feed, serving(feed) as server:
            assert get(server, f"/{server.word}/mark")[2] == b"null"
            assert post(server, b'{"score":%d}' % score) == 200
        assert run_episode(trace).scores == {"human": score}


def test_the_mark_of_a_person_is_written_beside_the_run(server: LiveServer, tmp_path: Path) -> None:
    before = (tmp_path / "trace.jsonl").read_bytes()
    assert get(server, f"/{server.word}/mark")[2] == b"null"
    assert post(server, json.dumps({"score": 0.5, "reason": "</script>"}).encode()) == 200
    assert post(server, json.dumps({"score": 1, "reason": "good"}).encode()) == 200
    (file,) = (tmp_path / "scores").iterdir()
    assert file.name == "human@1.json"
    assert json.loads(file.read_bytes())["reason"] == "good"
    assert json.loads(get(server, f"/{server.word}/mark")[2]) == {"score": 1.0, "reason": "good"}
    assert (tmp_path / "trace.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"score":"1"}',
        b'{"score":1e999}',
        b'{"score":NaN}',
        b'{"score":1,"x":2}',
        b" " * 20_000,
    ],
)
def test_what_is_no_mark_is_refused_and_nothing_is_written(
    server: LiveServer, tmp_path: Path, body: bytes
) -> None:
    assert post(server, body) == 400
    assert not (tmp_path / "scores").exists()


def test_only_the_page_itself_can_mark(server: LiveServer, tmp_path: Path) -> None:
    mark = b'{"score":1}'
    assert post(server, mark, Origin="http://elsewhere.example") == 403
    assert post(server, mark, Origin="null") == 403
    assert post(server, mark, Host="elsewhere.example") == 403
    assert post(server, mark, path="/wrong/mark") == 404
    assert post(server, mark, path=f"/{server.word}/feed") == 404
    assert not (tmp_path / "scores").exists()
