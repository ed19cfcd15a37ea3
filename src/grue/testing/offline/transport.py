"""The offline model as an httpx transport, which replaces the network."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final

import anyio
import httpx
import msgspec
from msgspec.structs import replace

from grue import messages as m
from grue.testing.offline.chat_request import BadRequestError, ChatRequest, decode_body, read_request
from grue.testing.offline.repertoire import Playbook
from grue.testing.offline.script import MODEL, OFFLINE_URL, Reply, completion, reply
from grue.testing.providers.dialects import Dialect, dialect_of
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings

_PIECE_PAUSE_S: Final = 0.03

_MODELS: Final[m.JsonObject] = {
    "object": "list",
    "data": [
        {
            "id": MODEL,
            "object": "model",
            "created": 0,
            "owned_by": "grue",
            "name": "grue's scripted model (offline)",
            "supported_parameters": ["tools", "tool_choice", "response_format", "structured_outputs"],
        }
    ],
}


class _Events(httpx.AsyncByteStream, httpx.SyncByteStream):
    def __init__(self, events: Sequence[bytes], pause_s: float) -> None:
        self._events = events
        self._pause_s = pause_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in self._events:
            if self._pause_s:
                await anyio.sleep(self._pause_s)
            yield event

    def __iter__(self) -> Iterator[bytes]:
        yield from self._events


class ScriptedModelTransport(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """Answers requests to any host for completions and models, without network or API key.

    It has no state: one instance can serve any number of clients. `script` answers the requests; `None`: play
    a game with `playbook`, or explore it. `strict_names`: allow only letters, digits, `_` and `-` in function
    names. `pause_s`: seconds before each piece of a stream, for an `httpx.AsyncClient`; `None`: 0.03 if
    standard output is a terminal, else 0.
    """

    def __init__(
        self,
        playbook: Playbook | None = None,
        *,
        strict_names: bool = False,
        script: Callable[[ChatRequest], Reply] | None = None,
        pause_s: float | None = None,
    ) -> None:
        at_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._pause_s = pause_s if pause_s is not None else _PIECE_PAUSE_S if at_terminal else 0.0
        self._script = script or (lambda request: reply(request, playbook))
        self._strict_names = strict_names

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request of an `httpx.AsyncClient`."""
        return self._answer(request.method, request.url, await request.aread())

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request of an `httpx.Client`."""
        return self._answer(request.method, request.url, request.read())

    def _answer(self, method: str, url: httpx.URL, body: bytes) -> httpx.Response:
        path = url.raw_path.partition(b"?")[0].decode("ascii")
        dialect = dialect_of(path)
        if dialect is not None:
            return self._complete(dialect, path, body) if method == "POST" else _wrong_method(method, path)
        if path.endswith("/models"):
            return _json(200, _MODELS) if method == "GET" else _wrong_method(method, path)
        return _json(404, {"error": _error(f"Invalid URL ({method} {path})")})

    def _complete(self, dialect: Dialect, path: str, body: bytes) -> httpx.Response:
        try:
            asked = decode_body(body) | (dialect.told(path) or {})
            request = read_request(asked, dialect, strict_names=self._strict_names)
            said = self._script(request)
            if not isinstance(said, Reply):
                raise TypeError(f"a script returns a Reply, not {said!r:.80}: write Reply(...)")
            answer = completion(body, said)
        except BadRequestError as error:
            return _json(400, dialect.error(400, _error(str(error), error.param, error.code)))
        content = dialect.from_chat(answer, asked)
        if not asked.get("stream"):
            return _json(200, content)
        events = tuple(dialect.events(content, asked))
        headers = {"Content-Type": "text/event-stream"}
        return httpx.Response(200, headers=headers, stream=_Events(events, self._pause_s))


def offline_endpoint(
    script: Callable[[ChatRequest], Reply], settings: LlmSettings | None = None, *, model: str = MODEL
) -> LlmEndpoint:
    """Return an endpoint that a script answers, for `--offline`; limits and retries are as in `settings`."""
    real = settings or LlmSettings(model=model)
    offline = replace(real, base_url=OFFLINE_URL, model=model, api_key="", wire=None, profile=None, then=())
    return LlmEndpoint(offline, transport=ScriptedModelTransport(script=script))


def _wrong_method(method: str, path: str) -> httpx.Response:
    return _json(405, {"error": _error(f"Not allowed to {method} on {path}.", code="method_not_supported")})


def _error(message: str, param: str | None = None, code: str | None = None) -> m.JsonObject:
    return {"message": message, "type": "invalid_request_error", "param": param, "code": code}


def _json(status: int, content: m.JsonObject) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    return httpx.Response(status, headers=headers, content=msgspec.json.encode(content))
