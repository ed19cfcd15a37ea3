"""A scripted LLM endpoint for tests: real HTTP on 127.0.0.1, no real key, and the checks of strict providers.

```python
script = [tool_calls_reply(("think.think", {"thought": "A lamp!"})), text_reply("take lamp")]
with ScriptedLlmServer(script) as llm:
    ...  # run an agent against llm.base_url
assert llm.requests[1].messages[-1]["role"] == "tool"
```

One script serves every format: chat completions, OpenAI's Responses and Anthropic's Messages, whole or
streamed (`grue.testing.providers`). A request that strict providers would refuse, such as one with a tool
call without a result, gets an error, mostly a 400, instead of the next reply.
"""

import contextlib
import gzip
import json
import os
import re
import socket
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.client import responses as _REASONS  # noqa: N812 - a table
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue.testing.llm_replies import (
    LlmReply,
    Pace,
    completion,
    error_reply,
    hang_up,
    json_reply,
    refusal_reply,
    silence,
    text_reply,
    tool_calls_reply,
)
from grue.testing.providers.batches import ScriptedBatches
from grue.testing.providers.chat_rules import MALFORMED, Json, ProviderRules, Refusal
from grue.testing.providers.dialects import CHAT, Dialect, dialect_of

if TYPE_CHECKING:
    from grue import LlmSettings

__all__ = [
    "ContextWindow",
    "LlmReply",
    "LlmRequest",
    "Pace",
    "Script",
    "ScriptedLlmServer",
    "completion",
    "error_reply",
    "hang_up",
    "json_reply",
    "refusal_reply",
    "silence",
    "text_reply",
    "tool_calls_reply",
]

_FRAME_TOKENS = 4


class ContextWindow(Struct, frozen=True):
    """How long a request may be.

    Attributes:
        tokens: The most tokens of a request, including those of the reply that it asks for.
        bytes_per_token: How many bytes of JSON count as one token.
    """

    tokens: int
    bytes_per_token: float = 4.0

    def count(self, chat: dict[str, Any]) -> int:
        """Return the number of tokens of a request, which must be in the form of chat completions."""
        parts = [*chat.get("messages", ()), *chat.get("tools", ())]
        return sum(_FRAME_TOKENS + int(len(json.dumps(part)) / self.bytes_per_token) for part in parts)

    def refusal(self, prompt: int, chat: dict[str, Any]) -> LlmReply | None:
        """Return the refusal of a request of `prompt` tokens, in OpenAI's words; `None`: the request fits."""
        reply = chat.get("max_completion_tokens") or chat.get("max_tokens") or 0
        if prompt + reply <= self.tokens:
            return None
        return error_reply(
            400,
            f"This model's maximum context length is {self.tokens} tokens. However, you requested "
            f"{prompt + reply} tokens ({prompt} in the messages, {reply} in the completion). Please reduce "
            "the length of the messages or completion.",
            type="invalid_request_error",
            code="context_length_exceeded",
        )

    def counted(self, reply: LlmReply, prompt: int) -> LlmReply:
        """Return the reply; in a completion with `usage`, `prompt` becomes the number of prompt tokens."""
        try:
            body = json.loads(reply.body)
            usage = body["usage"]
            usage |= {"prompt_tokens": prompt, "total_tokens": prompt + usage.get("completion_tokens", 0)}
        except (ValueError, KeyError, TypeError, AttributeError):
            return reply
        return replace(reply, body=json.dumps(body).encode())


_GZIP = 31  # value of `wbits` of zlib that makes the format of gzip

# Value of SO_LINGER that makes closing a connection send RST instead of FIN.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def deliver(reply: LlmReply, connection: socket.socket, closing: threading.Event) -> bool:
    """Send a reply, and return whether to keep the connection."""
    # If the result is false, the caller closes the connection; after `reset`, it is closed already.
    # The event `closing` ends a pause or a hang. Raises `OSError` if the client has closed the connection.
    for piece in _pieces(_compressed(reply)):
        connection.sendall(piece)
        if reply.pace is not None and closing.wait(reply.pace.every_s):
            return False
    if reply.then == "hang":
        closing.wait()
    if reply.then == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        # close() is not enough: a file object of the request handler keeps the socket open.
        os.close(connection.detach())
    return reply.then == "keep"


def _compressed(reply: LlmReply) -> LlmReply:
    for _ in range(reply.gzip):
        stream = zlib.compressobj(wbits=_GZIP)
        events = tuple(stream.compress(each) + stream.flush(zlib.Z_SYNC_FLUSH) for each in reply.events)
        events = (*events, stream.flush()) if events else ()
        reply = replace(reply, events=events, body=b"" if events else gzip.compress(reply.body))
    return reply


def _is_raw(reply: LlmReply) -> bool:
    return reply.then != "keep" and reply.after is None and not reply.amid


def _pieces(reply: LlmReply) -> Iterator[bytes]:
    if _is_raw(reply):
        yield reply.body
        return
    if reply.events:
        head = _head(reply, {"Transfer-Encoding": "chunked"})
        events = reply.events[: share(len(reply.events), reply.after)]
        parts = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
        parts += [b"0\r\n\r\n"] if reply.then == "keep" else []
    else:
        body = reply.body if reply.after is None else reply.body[: int(len(reply.body) * reply.after)]
        promised = body if reply.then == "keep" else reply.body
        head, parts = _head(reply, {"Content-Length": str(len(promised))}), [body]
    if reply.pace is not None:
        yield head
        sent, size = b"".join(parts), reply.pace.size
        yield from (sent[start : start + size] for start in range(0, len(sent), size))
    elif reply.events:
        yield head
        yield from parts
    else:
        yield head + parts[0]


def share(count: int, after: float | None) -> int:
    """Return how many of `count` events make up the fraction `after`; `None`: all.

    With a fraction, it is at least 1 event, and at least 1 is left out if there are several.
    """
    return count if after is None else max(1, min(count - 1, int(count * after)))


def _head(reply: LlmReply, framing: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in {**reply.headers, **framing}.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


_ONE_MODEL = ({"id": "scripted"},)


class LlmRequest(Struct, frozen=True, kw_only=True):
    """A request that the server has received.

    Attributes:
        path: The URL's path and query, such as `/v1/chat/completions`.
        headers: The headers, with their names in lower case.
        body: The parsed body; empty if it is not a JSON object.
        refused: Why the server refused the request; `None`: it accepted the request, or refused it only for
            its length or its path.
        dialect: The wire format of the request, by the path; `chat_completions` for an unknown path.
        chat: The body translated to chat completions; empty if the body is malformed or a header is missing.
    """

    path: str
    headers: dict[str, str]
    raw: bytes
    body: dict[str, Any]
    refused: str | None = None
    dialect: str = "chat_completions"
    chat: dict[str, Any] = {}

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation in the request, translated to chat completions."""
        messages: list[dict[str, Any]] = self.chat.get("messages", [])
        return messages

    @property
    def tool_names(self) -> list[str]:
        """Names of the tools on offer, as they were sent."""
        return [tool["function"]["name"] for tool in self.chat.get("tools", [])]


_FIRST_ERROR = 400

Script: TypeAlias = Sequence[LlmReply | str] | Callable[[LlmRequest], LlmReply | str]

_SHOWN = 300

# Begins the text of an error in the script. grue's advice on such an error is about the script, not a model.
_OURS = "grue.testing: "


def _as_reply(given: object) -> LlmReply | None:
    if given is hang_up or given is silence:
        return given()
    if isinstance(given, str):
        return text_reply(given)
    return given if isinstance(given, LlmReply) else None


def _last_of(request: LlmRequest) -> str:
    """Return sentences about a request's last message, for an error text; empty: the message has no text."""
    from grue.messages import REPAIR_REQUEST  # imported here, because only a test that fails needs it
    from grue.runtime.safe_text import printable

    last = request.messages[-1] if request.messages else {}
    text = last.get("content")
    if not isinstance(text, str):
        return ""
    refused = " The reply before it was refused." if text.startswith(REPAIR_REQUEST.partition("{")[0]) else ""
    return f"{refused} Its last message ({last.get('role')}) is: {printable(text, _SHOWN)}"


def _replies(script: Sequence[LlmReply | str]) -> list[LlmReply]:
    if not isinstance(script, Iterable) or isinstance(script, Mapping | bytes):
        raise TypeError(f"script is of type {type(script).__name__}: give a list of replies, or a function.")
    replies = []
    for number, given in enumerate(script, start=1):
        reply = _as_reply(given)
        if reply is None:
            raise TypeError(
                f"script: reply {number} is of type {type(given).__name__}: give a text, text_reply('...') or"
                " tool_calls_reply(('server.tool', {...}))."
            )
        replies.append(reply)
    return replies


class ScriptedLlmServer:
    """An LLM endpoint that sends scripted replies; a context manager.

    It answers POST to `.../chat/completions`, `.../responses` and `.../messages`, and GET to `.../models`.
    It takes batches of such requests too (`grue.testing.providers.batches`).

    Args:
        script: Replies in order, or one reply, or a function from request to reply, which several threads may
            call at the same time. A text is short for `text_reply`.
        rules: The rules by which it refuses requests; default: `ProviderRules()`.
        models: The models that it lists, in OpenRouter's shape (`id`, `supported_parameters`), or the reply
            to a request for them; default: one with the id `scripted`.
        window: The most tokens that a request may have. A completion's `usage` then has the counted tokens of
            the request. `None`: any number, not counted.
        port: The server's port; 0: a free one.
        retry_after: `Retry-After` of errors that have none, in replies to POST; `"0"`: retry at once.

    Attributes:
        requests: Every POST not about batches, refused ones too, and every request answered for a batch.
        listings: Every GET request so far that was not about batches.
        batches: The batches of this endpoint; `batches.faults` makes them fail.
        accepted: Number of connections so far.
        overflows: Number of requests that were too long for the window. They do not use up a reply.

    Raises:
        TypeError: `script` has another type, or one of its items is neither a reply nor a text.
        OSError: The port is not available.
    """

    def __init__(
        self,
        script: Script,
        *,
        rules: ProviderRules | None = None,
        models: Sequence[Mapping[str, object]] | LlmReply = _ONE_MODEL,
        window: ContextWindow | None = None,
        retry_after: str | None = None,
        port: int = 0,
    ) -> None:
        self.requests: list[LlmRequest] = []
        self.listings: list[LlmRequest] = []
        self.batches = ScriptedBatches(self.answer)
        self.accepted = self.overflows = 0
        self._window = window
        self._retry_after = retry_after
        self._rules = ProviderRules() if rules is None else rules
        self._models = models if isinstance(models, LlmReply) else json_reply({"data": [*models]})
        one = _as_reply(script)
        self._script = [one] if one else script if callable(script) else _replies(script)
        self._served = 0
        self._owed: dict[str, dict[str, list[Json]]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._http = _HttpServer(("127.0.0.1", port), _Handler)
        self._http.owner = self
        # A daemon thread: if the `with` block is never left, as in a notebook, the program can still end.
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.02,), name="scripted-llm", daemon=True
        )

    @property
    def base_url(self) -> str:
        """The base URL to configure, such as `http://127.0.0.1:43210/v1`."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def left(self) -> int:
        """How many replies of the list have not been sent yet; 0 if the script is a function."""
        with self._lock:
            return 0 if callable(self._script) else max(0, len(self._script) - self._served)

    @property
    def settings(self) -> "LlmSettings":
        """Settings for this endpoint, as `Runner(llm=...)` takes them: no key, and no backoff of retries."""
        # For a script with `silence()`, shorten the limit: `replace(llm.settings,
        # retry=RetryPolicy(timeout_s=0.5))`.
        from grue import LlmSettings, RetryPolicy

        retry = RetryPolicy(initial_delay_s=0, max_delay_s=0)
        return LlmSettings(base_url=self.base_url, model="scripted", api_key="", retry=retry)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._thread.is_alive():  # this is a forked child: the server runs in its parent
            return
        self._http.shutdown()
        with self._lock:
            self._closing.set()
            for connection in self._http.handlers:
                _wake(connection)
        self._http.server_close()
        for handler in self._http.handlers.values():
            handler.join()
        self._thread.join()

    def answer(self, path: str, headers: Mapping[str, str], raw: bytes) -> LlmReply:
        """Answer a POST, and record it unless it is about batches."""
        reply = self._answer(path, headers, raw)
        if self._retry_after is None or reply.status < _FIRST_ERROR:
            return reply
        return replace(reply, headers={"Retry-After": self._retry_after, **reply.headers})

    def _answer(self, path: str, headers: Mapping[str, str], raw: bytes) -> LlmReply:
        if self.batches.takes(path):
            return self.batches.answer("POST", path, headers, raw)
        dialect = dialect_of(path)
        request, refusal = self._read(dialect or CHAT, path, headers, raw)
        with self._lock:
            self.requests.append(request)
        if dialect is None:
            return error_reply(404, f"Unknown request URL: POST {path}.")
        if refusal is not None:
            said = error_reply(refusal.status, refusal.words, type="invalid_request_error")
        elif self._window is not None:
            prompt = self._window.count(request.chat)
            too_long = self._window.refusal(prompt, request.chat)
            said = too_long or self._window.counted(self._scripted(request), prompt)
            self.overflows += too_long is not None
        else:
            said = self._scripted(request)
        reply, wants_back = _rendered(said, dialect, request.body)
        with self._lock:
            self._owed.setdefault(dialect.name, {}).update(wants_back)
        return reply

    def listing(self, path: str, headers: Mapping[str, str]) -> LlmReply:
        """Answer a GET, and record it unless it is about batches."""
        if self.batches.takes(path):
            return self.batches.answer("GET", path, headers, b"")
        with self._lock:
            self.listings.append(LlmRequest(path=path, headers=dict(headers), raw=b"", body={}))
        if not path.partition("?")[0].endswith("/models"):
            return error_reply(404, f"Unknown request URL: GET {path}.")
        return self._models

    def _read(
        self, dialect: Dialect, path: str, headers: Mapping[str, str], raw: bytes
    ) -> tuple[LlmRequest, Refusal | None]:
        chat: Json = {}
        body, unreadable = _parse(raw)
        body |= dialect.told(path) or {}
        refusal = dialect.admission(headers) or unreadable
        if refusal is None:
            with self._lock:
                owed = dict(self._owed.get(dialect.name, {}))
            chat, refusal = dialect.read(body, self._rules, owed)
        request = LlmRequest(
            path=path,
            headers=dict(headers),
            raw=raw,
            body=body,
            refused=refusal.words if refusal else None,
            dialect=dialect.name,
            chat=chat,
        )
        return request, refusal

    def _scripted(self, request: LlmRequest) -> LlmReply:
        if callable(self._script):
            script: Callable[[LlmRequest], object] = self._script
            try:
                reply = script(request)
            except BaseException as error:  # noqa: BLE001 - the test must hear of it, of `pytest.fail` too
                return error_reply(400, f"{_OURS}the script failed: {type(error).__name__}: {error}")
            return _as_reply(reply) or error_reply(
                400, f"{_OURS}the script returned {type(reply).__name__}, and no reply or text."
            )
        with self._lock:
            self._served += 1
            if self._served > len(self._script):
                asked = f"the agent has asked once more than there are replies ({len(self._script)})."
                text = f"{_OURS}the script has no reply number {self._served}: {asked}{_last_of(request)}"
                return error_reply(400, text)
            return self._script[self._served - 1]


def _wake(connection: socket.socket) -> None:
    # This ends the thread that waits for the connection's next request.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _rendered(said: LlmReply, dialect: Dialect, request: Json) -> tuple[LlmReply, dict[str, list[Json]]]:
    """Return `said`, in `dialect` if possible, and the reasoning that later requests must repeat."""
    reply = None if _is_raw(said) else dialect.reply(said.body, said.status, request)
    if reply is None:
        return _unless_streamed(said), {}
    try:
        wants_back = dialect.owed(reply)
        events = tuple(dialect.events(reply, request)) if request.get("stream") else ()
    except MALFORMED:
        wants_back, events = {}, ()
    if events:
        return _streamed(said, dialect, events), wants_back
    said = _unless_streamed(said)
    # The bytes of a chat completion are sent as the script has them.
    return (said if dialect is CHAT else replace(said, body=json.dumps(reply).encode())), wants_back


def _unless_streamed(said: LlmReply) -> LlmReply:
    # With `amid`, `after` is a place in a stream. This reply is not streamed, so send the whole of it.
    return replace(said, after=None) if said.amid else said


def _streamed(said: LlmReply, dialect: Dialect, events: tuple[bytes, ...]) -> LlmReply:
    headers = said.headers
    if headers.get("Content-Type") == "application/json":
        headers = {**headers, "Content-Type": "text/event-stream; charset=utf-8"}
    if not said.amid:
        return replace(said, headers=headers, events=events)
    place = share(len(events), 0.5 if said.after is None else said.after)
    if said.amid == "error":
        events = (*events[:place], dialect.broken_off())
    else:
        events = (*events[:place], said.amid, *events[place:])
    return replace(said, headers=headers, events=events, after=None)


def _parse(raw: bytes) -> tuple[Json, Refusal | None]:
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return {}, Refusal(words=f"We could not parse the JSON body of your request: {error}")
    if not isinstance(body, dict):
        return {}, Refusal(words="The JSON body of a request is an object.")
    return body, None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_LENGTH = re.compile(r"[0-9]{1,9}")


class _HttpServer(ThreadingHTTPServer):
    owner: ScriptedLlmServer
    request_queue_size = socket.SOMAXCONN  # with the default, 5, some of many clients are refused
    handlers: Mapping[socket.socket, threading.Thread] = MappingProxyType({})  # the thread of each connection

    def process_request(self, request: Any, client_address: Any) -> None:
        # Daemon threads, because a client may keep its connection open to the end of the program. The base
        # class would not wait for them in `server_close`.
        handler = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), daemon=True
        )
        self.owner.accepted += 1
        handler.start()
        alive = {at: each for at, each in self.handlers.items() if each.is_alive()}
        self.handlers = alive | {request: handler}

    def close_request(self, request: Any) -> None:
        with self.owner._lock:  # noqa: SLF001 - `_wake` must not meet another connection with the same number
            super().close_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        # Print nothing about an OSError: the client has closed the connection, for example at its time limit.
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # as they came


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _HttpServer

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not _LENGTH.fullmatch(length):
            self._send(error_reply(411, "A request needs a Content-Length: a number of bytes below 1 GB."))
            self.close_connection = True  # where the request ends is not known
            return
        raw = self.rfile.read(int(length))
        if len(raw) < int(length):  # the client has ended, such as a program that a test has killed
            self.close_connection = True
            return
        self._send(self.server.owner.answer(self.path, self._headers(), raw))

    def do_GET(self) -> None:
        self._send(self.server.owner.listing(self.path, self._headers()))

    def _headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def _send(self, reply: LlmReply) -> None:
        kept = deliver(reply, self.connection, self.server.owner._closing)  # noqa: SLF001
        self.close_connection = not kept

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing: the requests are recorded."""
