"""A further wire format is a row in the table of formats, and one in that of dialects. Here it is made up."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fourth_format import DIALECT, FourthFormat
from talks import changed_prefixes
from waiting_batch import batching
from wire_bodies import REPLIES, call_ids, list_of, unread_thoughts

from grue import FunctionTools, LlmSettings, Runner, TurnRequest
from grue.errors import MCPConfigError
from grue.fleet.batches import FleetBatches
from grue.messages import TextDelta
from grue.policies import Batching
from grue.protocol.chat_wire.batch_forms import batch_form_of
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profile import ModelSettings
from grue.protocol.chat_wire.wire_format import Reply, WireRequest
from grue.protocol.retry import RetryPolicy
from grue.protocol.tools.names import CUT_MARK, WireNames
from grue.protocol.turn.completion_attempts import larger_limit
from grue.testing.llm_server import LlmReply, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.testing.offline.transport import ScriptedModelTransport
from grue.testing.providers import dialects
from grue.transports.llm.endpoint import limit_in

MODEL = "house/a b"
WHOLE = "/v1/models/house%2Fa%20b:reply?a=b&form=2"
IN_PIECES = "/v1/models/house%2Fa%20b:replyInPieces?a=b&form=2"


@pytest.fixture(autouse=True)
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    fourth = FourthFormat()
    monkeypatch.setitem(FORMATS, fourth.name, fourth)  # type: ignore[arg-type]  # a dict that is not to change
    monkeypatch.setitem(dialects.DIALECTS, DIALECT.name, DIALECT)


def look(at: str) -> str:
    return f"{at}: a hall"


def turn(server: ScriptedLlmServer, seen: list[TextDelta] | None = None) -> str:
    # The base URL ends in a path of the format, of whatever model. So it selects the format.
    base_url = f"{server.base_url}/models/other:replyInPieces?a=b"
    llm = LlmSettings(base_url=base_url, model=MODEL, api_key="key")
    with Runner(llm=llm, servers={"house": FunctionTools({"look": look})}) as runner:
        on_delta = None if seen is None else seen.append
        return runner.run_turn(TurnRequest[str](system="Look.", user="Now.", on_delta=on_delta)).response


def replies(arguments: str) -> list[LlmReply]:
    call = tool_calls_reply(
        ("house__look", arguments), content="One moment.", ids=["a"], reasoning_content="deep"
    )
    return [call, text_reply("A long hall.")]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_turn_with_a_tool_call(stream: bool) -> None:
    seen: list[TextDelta] | None = [] if stream else None
    with ScriptedLlmServer(replies('{"at": "door"}')) as server:
        assert turn(server, seen) == "A long hall."
    first, second = server.requests
    assert [each.refused for each in server.requests] == [None, None]
    assert [each.path for each in server.requests] == [IN_PIECES if stream else WHOLE] * 2
    assert {each.chat["model"] for each in server.requests} == {MODEL}
    assert first.tool_names == ["house__look"]
    assert "tool_choice" not in first.body
    assert second.body["talk"][-2] == {
        "by": "model",
        "said": "One moment.",
        "thought": "deep",
        "calls": [{"id": "a", "name": "house__look", "with": {"at": "door"}}],
    }
    assert second.body["talk"][-1] == {"by": "tool", "of": "a", "tool": "house__look", "said": "door: a hall"}
    if seen is not None:
        assert "".join(each.text for each in seen) == "One moment.A long hall."
        assert len(seen) > 2
    profile = FORMATS["fourth"].profile
    assert (list_of(profile), call_ids(second.raw, profile)) == ("talk", (["a"], ["a"]))
    assert changed_prefixes(server, "fourth") == 0  # type: ignore[arg-type]  # a name that the test has added


@pytest.mark.parametrize("seen", [None, []], ids=["whole", "streamed"])
def test_arguments_that_are_no_json_are_an_error_of_their_call(seen: list[TextDelta] | None) -> None:
    with ScriptedLlmServer(replies('{"at": NaN}')) as server:
        assert turn(server, seen) == "A long hall."
    assert "NaN" in server.requests[1].body["talk"][-1]["said"]


@pytest.mark.parametrize("path", [WHOLE, IN_PIECES])
def test_the_offline_model_answers_it(path: str) -> None:
    with httpx.Client(transport=ScriptedModelTransport()) as client:
        answer = client.post(f"http://model.invalid{path}", json={"talk": [{"by": "user", "said": "Now."}]})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == (
        "text/event-stream" if path is IN_PIECES else "application/json"
    )


def test_nothing_is_sent_for_a_reply_without_text_and_calls() -> None:
    for content in (None, "", " "):
        assert FORMATS["fourth"].encode_reply(Reply(content=content), WireNames("encoded")) == ()


@pytest.mark.parametrize(
    ("ended", "sent"), [("length", [f"{{}}{CUT_MARK}"]), ("safety", []), ("stop", ["{}"])]
)
def test_a_call_of_a_reply_that_was_cut_is_marked_and_one_that_was_stopped_left_out(
    ended: str, sent: list[str]
) -> None:
    body = {"calls": [{"id": "a", "name": "house__look", "with": {}}], "ended": ended}
    conversation = EncodedConversation(FORMATS["fourth"].profile)
    reply = conversation.read(msgspec.json.encode(body), request=1, used_ids=())
    assert isinstance(reply, Reply)
    assert [each.arguments for each in reply.tool_calls] == sent
    assert (reply.cut, bool(reply.stopped)) == (ended == "length", ended == "safety")


@pytest.mark.parametrize(("message", "replies"), REPLIES)
def test_only_a_reply_with_a_thought_counts_as_one(message: dict[str, Any], replies: int) -> None:
    assert unread_thoughts("fourth", **message) == replies


class Batched(FourthFormat):
    """As providers want it that take batches, each request names its model. The path has it too."""

    batches = "openai"

    def body(self, request: WireRequest) -> bytes:
        return msgspec.json.encode({"model": MODEL, **msgspec.json.decode(super().body(request))})


def test_a_batch_has_the_model_in_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "fourth", Batched())  # type: ignore[arg-type]  # as above
    url = "/v1/models/house%2Fa%20b:reply?form=2"
    monkeypatch.setattr("grue.testing.providers.batches._ENDPOINTS", {url})
    with ScriptedLlmServer([text_reply("A hall.")]) as server:
        llm = LlmSettings(base_url=f"{server.base_url}/models/other:reply", model=MODEL, api_key="key")
        with Runner(llm=llm) as runner:
            (item,) = runner.map([TurnRequest(user="Look.")], batch=batching(tmp_path / "batch"))
        assert item.outcome is not None, item.error
        assert item.outcome.response == "A hall."
        assert [request.path for request in server.requests] == [url]


def test_a_fleet_s_batch_has_the_model_in_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "responses", Batched())  # type: ignore[arg-type]  # as above
    asked = {"key": "1-a", "base_url": "http://model.invalid/v1", "wire": "responses", "model": MODEL}
    episode = tmp_path / "episode"
    episode.mkdir()
    (episode / "requests.jsonl").write_bytes(msgspec.json.encode({**asked, "body": {}}) + b"\n")
    batches = FleetBatches(tmp_path, Batching(folder=str(tmp_path)))
    batches.add(episode)
    batches.close()
    (stored,) = tmp_path.rglob("requests/*.jsonl")
    assert msgspec.json.decode(stored.read_bytes())["url"] == "/v1/models/house%2Fa%20b:reply?form=2"


def test_a_limit_in_its_own_field_of_extra_body_is_read_and_not_changed() -> None:
    settings = ModelSettings(model=MODEL, extra_body={"most": 4_000})
    profile = FORMATS["messages"].profile
    assert limit_in(b'{"model": "m", "most": 4000}') == 4_000
    assert larger_limit(settings, profile, RetryPolicy()) is None
    assert larger_limit(ModelSettings(model=MODEL), profile, RetryPolicy()) is not None


def test_it_takes_no_batches() -> None:
    with pytest.raises(MCPConfigError, match="No batches are known for the wire format 'fourth'"):
        batch_form_of("fourth")
