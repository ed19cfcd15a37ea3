"""The request formats of providers (`Dialect`), and their translation to chat completions and back.

The module `NAME_dialect` of this package defines the fields of `Dialect` for the wire format `NAME`. It omits
those whose default is right for the format. To add a dialect, add its module.
"""
# Scripts, `ProviderRules` and the offline model work on chat completions only.

import json
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from grue.testing import providers
from grue.testing.providers.chat_rules import MALFORMED, Json, Owed, ProviderRules, Refusal, refusal_of


class Dialect(Struct, frozen=True, kw_only=True):
    """One request format, as functions that translate to and from chat completions."""

    name: str  # the wire format's
    path: str  # end of the URL path; `{model}` in it stands for the model's name
    to_chat: Callable[[Json], Json] = lambda body: body
    from_chat: Callable[[Json, Json], Json] = lambda said, _: said  # gets a completion and the request
    error: Callable[[int, Json], Json] = lambda _, said: {"error": said}  # gets a status and OpenAI's object
    refusals: Callable[[Json, Owed], Iterator[str]]  # gets a request and the earlier reasoning
    owed: Callable[[Json], dict[str, list[Json]]]  # gets a reply; returns its reasoning, as in `Owed`
    events: Callable[[Json, Json], Iterator[bytes]]  # gets a reply and the request
    broken_off: Callable[[], bytes]  # returns an error event for the middle of a stream
    admission: Callable[[Mapping[str, str]], Refusal | None] = lambda _: None  # gets the headers
    stream_path: str = ""  # end of the URL path of requests for a stream; empty: as `path`

    def told(self, path: str) -> Json | None:
        """Return the fields in a request's path, such as `model`; `None`: the path is not of this dialect."""
        for known, fields in ((self.path, {}), (self.stream_path, {"stream": True})):
            pattern = re.escape(known).replace(r"\{model\}", "(?P<model>[^/]+)")
            found = re.search(rf"{pattern}\Z", path.partition("?")[0].rstrip("/"))
            if known and found:
                return fields | {name: unquote(value) for name, value in found.groupdict().items()}
        return None

    def read(self, body: Json, rules: ProviderRules, owed: Owed) -> tuple[Json, Refusal | None]:
        """Return a request as chat completions (`{}` if malformed), and its refusal, or `None`."""
        if self.name == "chat_completions" and not rules.echo_reasoning:
            owed = {}
        words: str | None = None
        try:
            words = next(self.refusals(body, owed), None)
            chat = self.to_chat(body)
        except MALFORMED as error:
            return {}, Refusal(words=words or f"Invalid request: a field has the wrong type ({error}).")
        words = words or refusal_of(chat, rules)
        return chat, None if words is None else Refusal(words=words)

    def reply(self, body: bytes, status: int, request: Json) -> Json | None:
        """Translate a completion or an error; return other objects unchanged, and `None` if malformed."""
        try:
            said: Any = json.loads(body)
            if said.get("choices"):
                return self.from_chat(said, request)
            return self.error(status, said["error"]) if isinstance(said.get("error"), dict) else said
        except MALFORMED:
            return None


def _dialect(module: str) -> Dialect:
    own = vars(import_module(f"{providers.__name__}.{module}"))
    fields = {name: each for name, each in own.items() if name in Dialect.__struct_fields__}
    return Dialect(name=module.removesuffix(_SUFFIX), **fields)


_SUFFIX = "_dialect"
_MODULES = [each.name for each in iter_modules(providers.__path__) if each.name.endswith(_SUFFIX)]
DIALECTS = {each.name: each for each in map(_dialect, _MODULES)}
CHAT = DIALECTS["chat_completions"]


def dialect_of(path: str) -> Dialect | None:
    """Return the format of requests to a path; `None`: no format has this path."""
    return next((each for each in DIALECTS.values() if each.told(path) is not None), None)
