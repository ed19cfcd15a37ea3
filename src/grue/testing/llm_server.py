"""A scripted LLM endpoint on loopback: real HTTP, no network, no key, as strict as the strictest provider.

```python
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

script = [tool_calls_reply(("think.think", {"thought": "A lamp!"})), text_reply("take lamp")]
with ScriptedLlmServer(script) as llm:
    ...  # run an agent against llm.base_url
assert llm.requests[1].messages[-1]["role"] == "tool"
```

The script is a list of replies, served in order, or a function from request to reply. Each request is first
checked for what strict providers refuse: a tool call without an answer, empty texts, `tools: []`, too many
cache markers. A request that fails the check gets a 400 and uses up no reply of the list, so that a mistake
on the wire fails the test that makes it.
"""

import contextlib
import itertools
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from msgspec import Struct

from grue.testing.llm_rules import ProviderRules, refusal_of

_call_numbers = itertools.count(1)


class LlmRequest(Struct, frozen=True, kw_only=True):
    """A request as it came in.

    Attributes:
        path: Such as `/v1/chat/completions`.
        headers: Names in lower case.
        raw: The body's bytes.
        body: The body, parsed; empty if it is no JSON object.
        refused: Why the server's own rules refused it; `None`: they did not.
    """

    path: str
    headers: dict[str, str]
    raw: bytes
    body: dict[str, Any]
    refused: str | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation in the request."""
        messages: list[dict[str, Any]] = self.body.get("messages", [])
        return messages

    @property
    def tool_names(self) -> list[str]:
        """Names of the tools on offer, as they stand on the wire."""
        return [tool["function"]["name"] for tool in self.body.get("tools", [])]


class LlmReply(Struct, frozen=True, kw_only=True):
    """What the server sends back.

    Attributes:
        then: `keep` the connection; `hang`: send nothing until the server closes; `drop`: send only `body`,
            raw, and close the connection.
    """

    status: int = 200
    headers: dict[str, str] = {}
    body: bytes = b""
    then: Literal["keep", "hang", "drop"] = "keep"


Script: TypeAlias = Sequence[LlmReply] | Callable[[LlmRequest], LlmReply]


def text_reply(content: str | None, **message: object) -> LlmReply:
    """Return a completion with text.

    Args:
        content: The text.
        message: Further fields of the assistant's message, such as `reasoning_content`.
    """
    return completion({"role": "assistant", "content": content, **message}, finish_reason="stop")


def tool_calls_reply(
    *calls: tuple[str, Mapping[str, object] | str], content: str | None = None, ids: Sequence[str] = ()
) -> LlmReply:
    """Return a completion with tool calls.

    Args:
        calls: Name, and arguments as a mapping or as the JSON text to send.
        content: Text beside the calls.
        ids: Their ids; default: fresh ones.
    """
    wanted = ids or [f"call_scripted_{next(_call_numbers)}" for _ in calls]
    tool_calls = [
        {
            "id": call_id,
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
            },
        }
        for call_id, (name, arguments) in zip(wanted, calls, strict=True)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": tool_calls}
    return completion(message, finish_reason="tool_calls")


def completion(message: Mapping[str, object], *, finish_reason: str = "stop") -> LlmReply:
    """Return a completion with any assistant's message, well-formed or not."""
    return json_reply(
        {
            "id": "chatcmpl-scripted",
            "object": "chat.completion",
            "created": 0,
            "model": "scripted",
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }
    )


def error_reply(
    status: int, message: str, headers: Mapping[str, str] | None = None, **error: object
) -> LlmReply:
    """Return an error in OpenAI's shape.

    Args:
        status: HTTP status.
        message: The provider's words.
        headers: Such as `{"Retry-After": "3"}`.
        error: Further fields of the error object, such as `metadata`.
    """
    return json_reply({"error": {"message": message, **error}}, status=status, headers=headers)


def json_reply(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> LlmReply:
    """Return any JSON."""
    return LlmReply(
        status=status,
        headers={"Content-Type": "application/json", **(headers or {})},
        body=json.dumps(body).encode(),
    )


def silence() -> LlmReply:
    """Return no reply at all, for as long as the server lives."""
    return LlmReply(then="hang")


def hang_up(sent: bytes = b"") -> LlmReply:
    """Close the connection after these raw bytes, which may be half a reply."""
    return LlmReply(body=sent, then="drop")


class ScriptedLlmServer:
    """An OpenAI-compatible server that says what the script says; a context manager.

    Args:
        script: Replies in order, or a function from request to reply, called from several threads at once.
        rules: What it refuses; default: everything that some strict provider refuses, but dotted tool names.

    Attributes:
        requests: Every request so far, refused ones included.
        accepted: Connections so far.
    """

    def __init__(self, script: Script, *, rules: ProviderRules | None = None) -> None:
        self.requests: list[LlmRequest] = []
        self.accepted = 0
        self._rules = ProviderRules() if rules is None else rules
        self._script = script
        self._served = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._connections: set[socket.socket] = set()
        self._http = _HttpServer(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name="scripted-llm")

    @property
    def base_url(self) -> str:
        """The base URL to configure, such as `http://127.0.0.1:43210/v1`."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        with self._lock:
            self._closing.set()
            for connection in self._connections:
                _wake(connection)
        self._http.server_close()
        self._thread.join()

    def answer(self, path: str, headers: Mapping[str, str], raw: bytes) -> LlmReply:
        """Record a request and return the reply to it."""
        body, refused = _parse(raw)
        if refused is None:
            refused = refusal_of(body, self._rules)
        request = LlmRequest(path=path, headers=dict(headers), raw=raw, body=body, refused=refused)
        with self._lock:
            self.requests.append(request)
        if not path.partition("?")[0].endswith("/chat/completions"):
            return error_reply(404, f"Unknown request URL: POST {path}.")
        if refused is not None:
            return error_reply(400, refused, type="invalid_request_error")
        if callable(self._script):
            try:
                return self._script(request)
            except Exception as error:  # noqa: BLE001 - a test's own function; its failure has to reach the test
                return error_reply(400, f"The script failed: {type(error).__name__}: {error}")
        with self._lock:
            self._served += 1
            if self._served > len(self._script):
                return error_reply(400, f"The script has no reply number {self._served}.")
            return self._script[self._served - 1]

    def _connected(self, connection: socket.socket) -> None:
        with self._lock:
            self.accepted += 1
            self._connections.add(connection)
            if self._closing.is_set():
                _wake(connection)

    def _disconnected(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _wait_for_close(self) -> None:
        self._closing.wait()


def _wake(connection: socket.socket) -> None:
    """End a connection, and with it the thread that waits for its next request."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _parse(raw: bytes) -> tuple[dict[str, Any], str | None]:
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except ValueError as error:
        return {}, f"We could not parse the JSON body of your request: {error}"
    return (body, None) if isinstance(body, dict) else ({}, "The JSON body of a request is an object.")


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = False
    owner: ScriptedLlmServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _HttpServer

    def setup(self) -> None:
        super().setup()
        self.server.owner._connected(self.connection)  # noqa: SLF001 - two halves of one server

    def finish(self) -> None:
        self.server.owner._disconnected(self.connection)  # noqa: SLF001
        super().finish()

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server.owner.answer(self.path, headers, raw)
        if reply.then == "hang":
            self.server.owner._wait_for_close()  # noqa: SLF001
        self.close_connection = reply.then != "keep"
        # One write: a head and a body in two packets would wait for each other's acknowledgement.
        self.wfile.write(self._head(reply) + reply.body if reply.then == "keep" else reply.body)

    def _head(self, reply: LlmReply) -> bytes:
        headers = {**reply.headers, "Content-Length": str(len(reply.body))}
        lines = [f"HTTP/1.1 {reply.status} {self.responses.get(reply.status, ('Unknown',))[0]}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: the requests are recorded."""
