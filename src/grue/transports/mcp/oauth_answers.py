"""One exchange with an authorization server: its answer in the form that the SDK reads, and its secrets.

The SDK compares issuers letter by letter, although some servers add a slash at the end of one and not of the
other. It adds the life of a token to the clock, however long it is. Its errors quote the answers.
"""

import functools
import ssl
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl

import httpx2
import msgspec
from pydantic import ValidationError

from grue.tool_sessions.failures import first_fault
from grue.transports.mcp.oauth_faults import AuthorizationRefused, oauth_fault

EXCHANGE_S = 20.0
_MAX_BODY_BYTES = 1_000_000
_LONGEST_LIFE_S = 10 * 365 * 86_400
_MAX_FIELDS = 100
_SECRET_FIELDS = frozenset(
    (
        "access_token",
        "assertion",
        "client_assertion",
        "client_secret",
        "code",
        "code_verifier",
        "id_token",
        "refresh_token",
        "subject_token",
        "token",
    )
)


async def sent(request: httpx2.Request) -> httpx2.Response:
    """Send a request and return the answer with its body, which is bounded."""
    request.headers["accept-encoding"] = "identity"
    if request.method == "POST":  # otherwise GitHub and others answer with a form, which is no OAuth 2.1
        request.headers["accept"] = "application/json"
    async with httpx2.AsyncClient(verify=_tls(), timeout=EXCHANGE_S) as client:
        response = await client.send(request, stream=True)
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > _MAX_BODY_BYTES:
                raise AuthorizationRefused(oauth_fault(f"an answer of {request.url.host} is too long"))
        await response.aclose()
    answer = httpx2.Response(
        response.status_code, headers=response.headers, content=bytes(body), request=request
    )
    answer.next_request = response.next_request
    return answer


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


def adapted(answer: httpx2.Response, issuers: Sequence[str]) -> httpx2.Response:
    """Return the answer in the form that the SDK reads; the same one if it is no JSON object.

    Args:
        answer: Metadata, or tokens.
        issuers: The issuers that are known. One that differs by a slash at its end is written like them.
    """
    try:
        said = msgspec.json.decode(answer.content)
    except (msgspec.DecodeError, RecursionError):
        return answer
    if not isinstance(said, dict):
        return answer
    changes: dict[str, Any] = {}
    if isinstance(said.get("issuer"), str):
        changes["issuer"] = as_known(said["issuer"], issuers)
    if isinstance(said.get("authorization_servers"), list):
        changes["authorization_servers"] = [
            as_known(each, issuers) if isinstance(each, str) else each
            for each in said["authorization_servers"]
        ]
    if said.get("expires_in") is not None:
        changes["expires_in"] = _life(said["expires_in"])
    if all(said[name] == value for name, value in changes.items()):
        return answer
    try:
        content = msgspec.json.encode(said | changes)
    except (OverflowError, ValueError):  # another member is a huge number, or no Unicode
        return answer
    headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
    found = httpx2.Response(answer.status_code, headers=headers, content=content, request=answer.request)
    found.next_request = answer.next_request
    return found


def as_known(issuer: str, issuers: Sequence[str]) -> str:
    """Return the known issuer that differs from this one by a slash at its end at most, or else this one."""
    return next((known for known in issuers if known.rstrip("/") == issuer.rstrip("/")), issuer)


def secrets_of(request: httpx2.Request, answer: httpx2.Response) -> Iterator[tuple[str, str]]:
    """Yield name and value of each secret that a request and its answer carry, in JSON or as a form."""
    for content in (request.content, answer.content):
        for name, value in _fields(content):
            if name in _SECRET_FIELDS and isinstance(value, str) and value:
                yield name, value


def words_of(error: Exception) -> str:
    """Return an error of the SDK in words, without the answer that a validation error quotes."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ValidationError):
        cause = cause.__cause__ or cause.__context__
    return str(error) if cause is None else f"an answer cannot be read: {first_fault(cause)}"


def _fields(content: bytes) -> list[tuple[str, object]]:
    try:
        said = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        try:
            return list(parse_qsl(content.decode("utf-8", "replace"), max_num_fields=_MAX_FIELDS))
        except ValueError:  # it has more fields
            return []
    return list(said.items()) if isinstance(said, dict) else []


def _life(seconds: object) -> object:
    """Return the life of a token in seconds, at most ten years; anything else that it may be as it is."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | str):
        return seconds
    try:
        return int(min(max(float(seconds), 0.0), _LONGEST_LIFE_S))
    except OverflowError:
        return _LONGEST_LIFE_S
    except ValueError:
        return seconds
