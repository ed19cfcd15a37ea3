"""The scripted model over httpx: status codes, OpenAI's shapes, and our own decoding of them."""

import json
from types import SimpleNamespace

import httpx
import pytest
from dialect_requests import as_chat, as_messages, as_responses, read_chat, read_message, read_response
from offline_play import THINK, history

from grue import LlmSettings, Runner
from grue.errors import ActorCrashed
from grue.hosts.zork.agent import SYSTEM_PROMPT
from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.orchestrator import Move, context_text
from grue.protocol.chat_wire.chat_completions import ChatCompletions
from grue.protocol.chat_wire.failures import fault_of_status
from grue.protocol.chat_wire.wire_format import Reply
from grue.protocol.tools.names import WireNames
from grue.testing.offline import MODEL, ScriptedModelTransport, offline_endpoint
from grue.testing.offline.repertoire import house_playbook
from grue.testing.offline.script import FunctionCall
from grue.testing.offline.script import Reply as Said

URL = "http://offline.invalid/v1"
HELLO = {"model": "any/model", "messages": [{"role": "user", "content": "Hello?"}]}
DOTTED = {"type": "function", "function": {"name": "a.b", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def client():
    with httpx.Client(transport=ScriptedModelTransport()) as client:
        yield client


def test_a_completion_has_everything_that_a_real_one_has(client):
    response = client.post(f"{URL}/chat/completions", json=HELLO)
    answer = response.json()

    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert answer["id"].startswith("offline-")
    assert (answer["object"], answer["model"], answer["created"]) == ("chat.completion", MODEL, 0)
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["message"]["role"]) == ("stop", "assistant")
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 2


def test_the_same_request_gets_the_same_bytes_and_a_longer_one_costs_more(client):
    longer = {**HELLO, "messages": [{"role": "user", "content": "Hello? " * 100}]}
    first, second, third = (
        client.post(f"{URL}/chat/completions", json=body) for body in (HELLO, HELLO, longer)
    )

    assert first.content == second.content
    assert first.json()["id"] != third.json()["id"]
    assert third.json()["usage"]["prompt_tokens"] > first.json()["usage"]["prompt_tokens"] + 100


def test_our_own_decoding_reads_it(client):
    response = client.post(f"{URL}/chat/completions", json=HELLO)
    reply = ChatCompletions().decode(response.content, WireNames("canonical"), request=1)

    assert isinstance(reply, Reply)
    assert (reply.model, reply.finish_reason) == (MODEL, "stop")
    assert reply.usage.input_tokens > 0
    assert reply.content is not None


def test_the_model_lists_itself(client):
    listed = client.get(f"{URL}/models").json()

    assert [each["id"] for each in listed["data"]] == [MODEL]
    assert "tools" in listed["data"][0]["supported_parameters"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/embeddings", 404),
        ("POST", "/completions", 404),
        ("GET", "/chat/completions", 405),
        ("POST", "/models", 405),
    ],
)
def test_other_requests_get_an_error_in_json(client, method, path, status):
    response = client.request(method, f"{URL}{path}")

    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"{", json.dumps({"model": "any", "messages": []}).encode()])
def test_a_malformed_request_is_refused_for_good_in_openais_shape(client, body):
    response = client.post(f"{URL}/chat/completions", content=body)
    fault = fault_of_status(response.status_code, response.content)

    assert response.status_code == 400
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert (fault.kind, fault.message) == ("refused", response.json()["error"]["message"])


def test_names_with_dots_are_refused_on_demand(client):
    request = {**HELLO, "tools": [DOTTED]}
    assert client.post(f"{URL}/chat/completions", json=request).status_code == 200

    with httpx.Client(transport=ScriptedModelTransport(strict_names=True)) as strict:
        response = strict.post(f"{URL}/chat/completions", json=request)
    assert response.status_code == 400
    assert "Invalid 'tools[0].function.name'" in response.json()["error"]["message"]


@pytest.mark.anyio
async def test_one_transport_serves_client_after_client():
    transport = ScriptedModelTransport()
    for _ in range(2):
        async with httpx.AsyncClient(transport=transport) as client:
            assert (await client.post(f"{URL}/chat/completions", json=HELLO)).status_code == 200


FORMATS = {
    "/chat/completions": (as_chat, read_chat),
    "/responses": (as_responses, read_response),
    "/messages": (as_messages, read_message),
}


@pytest.mark.parametrize("path", FORMATS)
def test_a_turn_is_the_same_in_each_format(path):
    write, read = FORMATS[path]
    house = house_playbook(7)
    seen = Observation(text="Here you are.", location="Hall")
    commands = [step.command for step in house.steps]
    moves = [Move(command, "Fine.", "Hall", 0) for command in commands[: commands.index("dial 734")]]
    user = context_text("The House", len(moves) + 1, seen, moves, [])
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": user}]
    thoughts = []
    with httpx.Client(transport=ScriptedModelTransport(house)) as client:
        while True:
            request = {"model": "any", "messages": messages, "tools": [THINK]}
            content, calls = read(client.post(URL + path, json=write(request)).raise_for_status().json())
            if not calls:
                break
            thoughts += [call["arguments"]["thought"] for call in calls]
            said = [FunctionCall(call["id"], call["name"], json.dumps(call["arguments"])) for call in calls]
            messages += history(Said(calls=tuple(said)), [{"content": {"thoughtNumber": 1}}] * len(calls))

    assert json.loads(content)["action"] == "dial 734"
    assert len(thoughts) == 3


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/responses", b"{", "could not parse"),
        ("/responses", b'{"model": "m", "messages": []}', "has moved to 'input'"),
        ("/messages", b'{"model": "m", "messages": []}', "max_tokens: Field required"),
    ],
)
def test_other_formats_are_refused_in_their_own_words(client, path, body, said):
    response = client.post(f"{URL}{path}", content=body)
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]
    assert response.json().get("type") == ("error" if path == "/messages" else None)


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
def test_a_request_for_a_stream_gets_the_same_words_in_pieces(client, path):
    asked = {"model": "m", "max_tokens": 100, "messages": HELLO["messages"]}
    if path == "/responses":
        asked = {"model": "m", "input": "Hello?"}
    whole = client.post(f"{URL}{path}", json=asked)
    streamed = client.post(f"{URL}{path}", json={**asked, "stream": True})
    assert streamed.headers["content-type"] == "text/event-stream"
    words = max((text for text in _texts(whole.json())), key=len)
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert len(events) > 3
    assert words in "".join(text for event in events for text in _pieces(event))


def _texts(value):
    if isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value


def _pieces(event):
    delta = event.get("delta") or (event.get("choices") or [{}])[0].get("delta") or ""
    if isinstance(delta, str):
        return [delta]
    return [delta.get("content") or delta.get("text") or ""]


def test_an_offline_endpoint_keeps_the_settings_that_are_not_of_the_real_endpoint():
    then = LlmSettings(model="b", base_url="https://b.example/v1")
    real = LlmSettings(model="a", wire="messages", api_key="k" * 20, temperature=0.5, then=(then,))
    endpoint = offline_endpoint(lambda request: Said(request.messages[0].content.upper()), real)
    assert endpoint.settings == LlmSettings(base_url=URL, model=MODEL, api_key="", temperature=0.5)
    with Runner(llm=endpoint) as runner:
        assert runner.run_turn("hello").response == "HELLO"
    assert offline_endpoint(lambda _: Said("hi"), model="other").settings.model == "other"


def test_a_script_that_returns_no_reply_is_told_what_to_return():
    with (
        Runner(llm=offline_endpoint(lambda _: "hello")) as runner,
        pytest.raises(ActorCrashed, match=r"a script returns a Reply, not 'hello': write Reply\(...\)"),
    ):
        runner.run_turn("hi")


@pytest.mark.parametrize("at_terminal", [True, False])
@pytest.mark.anyio
async def test_a_stream_pauses_by_itself_only_at_a_terminal(monkeypatch, at_terminal):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr("grue.testing.offline.transport.anyio.sleep", sleep)
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: at_terminal))
        transport = ScriptedModelTransport()
    async with httpx.AsyncClient(transport=transport) as client:
        await client.post(f"{URL}/chat/completions", json={**HELLO, "stream": True})
    assert {*pauses} == ({0.03} if at_terminal else set())


@pytest.mark.anyio
async def test_a_stream_for_a_terminal_pauses_between_its_pieces(monkeypatch):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr("grue.testing.offline.transport.anyio.sleep", sleep)
    async with httpx.AsyncClient(transport=ScriptedModelTransport(pause_s=0.5)) as client:
        answer = await client.post(f"{URL}/chat/completions", json={**HELLO, "stream": True})
    assert answer.text.endswith("data: [DONE]\n\n")
    assert set(pauses) == {0.5}
