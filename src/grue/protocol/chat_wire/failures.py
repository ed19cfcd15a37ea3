"""Read the errors of an endpoint, and describe them for a person: what failed, and what to do about it.

An endpoint's text is untrusted and may repeat the API key: `describe` makes it safe. To recognise another
error text, add a pattern; `tests/unit/protocol/chat_wire/provider_errors.jsonl` has the errors of many
providers. Mostly the text decides, because status codes hardly help: a 429 may mean used-up credit or a limit
that is over in a second, and a 400, a 403 or a 404 nearly anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from msgspec import Struct

from grue import messages as m
from grue.policies import ContextOverflow, FailureKind, FailureReason
from grue.protocol.chat_wire.profile import WireProfile, is_loopback, shown_endpoint
from grue.protocol.json_text import from_json, to_json
from grue.protocol.retry import asked_wait, wait_in
from grue.runtime.safe_text import beginning, printable

RETRYABLE = frozenset({408, 424, 425, 429, 498, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529, 530})
"""HTTP statuses after which a retry can help. 424: the model failed. 498: a tier of Groq has no capacity.
529: Anthropic is overloaded. Others from 520 on: the server behind a proxy failed."""

_REFUSALS = frozenset({200, 400, 401, 402, 403, 404, 406, 409, 410, 412, 422, 451})
"""Statuses of errors whose text mostly decides the reason. An error object without a status counts as 200."""

NO_KEY = "There is no API key"
"""The beginning of the sentence about the key's source (`key` of `describe`) if there is no key."""

DOCTOR_CHECKS = " `grue doctor` checks it."
"""The last sentence of advice about an unreachable local endpoint. `grue doctor` leaves this sentence out."""


def says(pattern: str, words: str) -> re.Match[str] | None:
    """Search an endpoint's text for a pattern, ignoring case. Patterns are compiled at their first use."""
    return re.search(pattern, words, re.IGNORECASE)


def _words(*alternatives: str) -> str:
    return "|".join(alternatives)


_URL = re.compile(r"https?://\S+")
_LITELLM = re.compile(r"\b(?:litellm\.)?RateLimitError:?|\bthrottling_error\b")
"""LiteLLM adds one of these texts to each 429 of a provider, even if the credit is used up."""

_MONEY = _words(
    r"insufficient[_ ](?:account[_ ])?(?:quota|credit|fund|balance)|credit balance|credit limit",
    r"out of credit|spend(?:ing)?[ _-]?limit|budget[ _](?:has been )?exceeded|exceeded ?(?:token)?budget",
    r"(?:no|any|enough|requires? more|available) credits|key limit exceeded|prepa(?:id|yment)|arrear",
    r"credits (?:have been|are) (?:depleted|exhausted|used)|(?:depleted|used up) (?:your|all)",
    r"/ month|per month|monthly|account is in good standing|account (?:is )?suspended",
    r"payment (?:is )?(?:required|failed)|overdue|purchase (?:more )?credits|credit card",
    r"free tier of the model has been exhausted|FreeTierOnly|free allocation|\blimit: 0\b",
    r"balance is (?:not enough|insufficient)|not enough balance|usage limits?\. you will regain",
    r"billing[_ ](?:error|hard|not)|requires billing|current_quota_error",
    r"extra usage is required|inference limit|余额|欠费|充值|额度(?:不足|已用)",
)
_PERHAPS_MONEY = _words(r"current quota|billing|\bbudget\b")
_TIME = _words(
    r"rate.?limit|per[ -](?:min|second|hour|day)|/ ?min|\b[RT]P[MDS]\b|too.many.requests|throttl|concurren",
    r"(?:try|retry)\w*(?: your request)? (?:again )?(?:in|after) (?:about )?\d|please wait (?:\d|before)",
    r"high traffic|freq(?:uency|uently)|slow down|resets? (?:at|in)|resource has been exhausted",
    r"will be replenished|request limit|limit_requests|速率|频率|并发|请求过多|使用上限",
)
_BUSY = _words(
    r"overloaded|capacity|currently loading|(?:server|model) (?:is )?busy|temporarily unavailable|not ready",
    r"model has crashed|繁忙|访问量过大|饱和",
)
_REGION = _words(
    r"unsupported_country|(?:country|region|territory|location)\b[^\n]{0,40}not (?:supported|available)",
    r"not (?:available|supported|accessible) in (?:your|this) (?:country|region|location)",
)
_CONTENT = _words(
    r"content[ _-]?(?:management )?(?:polic|filter)|content (?:violates|exists risk)|responsible ?ai",
    r"moderation|flagged|data_?inspection|inappropriate|prohibited|high risk",
    r"safety (?:system|setting|check|filter|reason|polic)|usage (?:polic|guidelines)",
    r"new_sensitive|sensitive ?(?:content|information)|guardrail|不安全|敏感",
)
_TOOLS = _words(
    r"(?:not|n.t) support(?:ed)? (?:the )?(?:tool|function)|support tool use|requires --jinja",
    r"(?:tool|function)s?`?(?:[ _](?:use|calling|choice))?`? (?:is|are) not (?:supported|enabled)",
    r"enable-auto-tool-choice",
)
_A_FIELD = _words(
    r"unsupported (?:parameter|value)|unrecognized|unknown (?:name|parameter|field)|\bparameters?\b|\bschema",
    r"response[_ ]format|json_schema|reasoning|temperature|top_p|\bstream|extra inputs",
    r"max_(?:completion_)?tokens|role\b",
)
_AN_ADDRESS = _words(r"no route for|unexpected endpoint|invalid url \(|unknown (?:url|path|route|endpoint)")
_NOT_ALLOWED = _words(
    r"must be (?:verified|a member)|data policy|has not been used in project|not allowed to access",
    r"permission '[^\n]{0,80}denied|no such organization",
    r"(?:organization|project|workspace|team|account) has been (?:disabled|restricted|deactivated|banned)",
    r"(?:insufficient|not have sufficient|lacks|missing)\b[^\n]{0,40}(?:permission|scope|action)",
)
_MODEL = _words(
    r"models?\b[^\n]{0,120}(?:not exist|not found|not available|unavailable|deprecat|decommission)",
    r"models?\b[^\n]{0,120}(?:retired|removed)",
    r"models?\b[^\n]{0,120}(?:no longer|unknown|disabled|not loaded|(?:not|n.t) support)|not found the model",
    r"(?:invalid|unknown|unsupported|incorrect|no such) model\b|model_not_|not a valid model|specified model",
    r"invalid value for '?model\b|marked by provider as legacy",
    r"no models? (?:are currently )?loaded|load model|model access denied|repository not found|无可用渠道",
    r"no (?:allowed )?(?:providers|endpoints)\b|no deployments|model identifier",
    r"API deployment|DeploymentNotFound|access to (?:the )?model|not found for account|^model: |模型不存在",
)
_A_BAD_KEY = _words(
    r"(?:invalid|incorrect|wrong|missing|expired|revoked)[^\n]{0,30}(?:key|\btoken\b|credential|authoriz)",
    r"(?:key|token)\b[^\n]{0,40}(?:not valid|invalid|leaked|expired|revoked|blocked|is missing)",
)
_PERMISSION = _words(
    r"permission|(?:not|n.t) (?:authorized|allowed|permitted|have access)|restricted|is disabled|gated",
    r"access (?:to [^\n]{0,40})?(?:is )?(?:denied|forbidden)|lacks",
)
_KEY = _words(
    r"api[ _-]?key|apikey|unauthori[sz]ed|unauthenticated|authenticat|credentials|bearer|no connected db",
    r"request signature|signature (?:we|does not|is|has|cannot)|signatureDoesNot|login fail|身份验证|令牌",
)
_GARBLED = _words(  # signs that the model's own output was invalid; after a retry it may be valid
    r"\b(?:tool_use_failed|json_validate_failed|output_parse_failed|MALFORMED_FUNCTION_CALL)\b",
    r"failed to parse input at pos",
)
_BY_WORDS: tuple[tuple[FailureReason, str], ...] = (  # the first pattern that is found in a text decides
    ("reply", _GARBLED),
    ("content", _CONTENT),
    ("region", _REGION),
    ("credit", _MONEY),
    ("rate", _TIME),
    ("tools", _TOOLS),
    ("address", _AN_ADDRESS),
    ("permission", _NOT_ALLOWED),
    ("model", _MODEL),
    ("key", _A_BAD_KEY),
    ("permission", _PERMISSION),
    ("key", _KEY),
    ("credit", _PERHAPS_MONEY),
    ("overloaded", _BUSY),
)


def reason_of(status: int, words: str, codes: str = "", asked_s: float | None = None) -> FailureReason:
    """Return why an endpoint refused a request; `status` is HTTP's, or that of the error object.

    `codes`: the error object's codes and types. `asked_s`: the wait that the endpoint asks for, if any.
    """
    text = _LITELLM.sub(" ", f"{_URL.sub(_fragment, words)}\n{codes}")
    if status < 400 and status != 200:
        return "address"
    if is_too_long(f"{codes}\n{words}", status):
        return "too_long"
    if status == 429:
        return _of_limit(text, asked_s)
    if status in _REFUSALS:
        return _of_words(status, text) or _of_status(status, text)
    if status in RETRYABLE:
        return _of_failing(status, text)
    return _of_status(status, text)


_KINDS: dict[FailureReason, FailureKind] = {
    **dict.fromkeys(("rate", "overloaded"), "unavailable"),
    "reply": "invalid_reply",
    "timeout": "timed_out",
    "connection": "unreachable",
}

REASONS: dict[FailureKind, FailureReason] = {  # those to assume if no reply of the endpoint names one
    "refused": "request",
    "timed_out": "timeout",
    **dict.fromkeys(("unavailable", "unreachable"), "connection"),
    **dict.fromkeys(("invalid_reply", "damaged"), "reply"),
}


def kind_of(reason: FailureReason) -> FailureKind:
    """Return the kind of failure that a reason belongs to."""
    return _KINDS.get(reason, "refused")


def _fragment(url: re.Match[str]) -> str:
    # Many texts link to the billing page without being about money. `#token-limit` points to a rate limit.
    return "#token-limit" if "#token-limit" in url[0] else " "


def _of_limit(text: str, asked_s: float | None) -> FailureReason:
    """Return what a 429 means. Vague words about money count only if nothing points to a rate limit."""
    # Two rate limits use words about money: OpenRouter says that credits would raise its daily limit, and
    # DashScope calls its limit of tokens a quota.
    if says(_MONEY, text) and "-per-day" not in text and "#token-limit" not in text:
        return "credit"
    if says(_BUSY, text):
        return "overloaded"
    timed = asked_s is not None or says(_TIME, text) or "#token-limit" in text
    return "credit" if says(_PERHAPS_MONEY, text) and not timed else "rate"


def _of_words(status: int, text: str) -> FailureReason | None:
    if status == 402:
        return "credit"
    found = next((reason for reason, pattern in _BY_WORDS if says(pattern, text)), None)
    if status in (400, 422) and found in ("model", "permission", "credit") and says(_A_FIELD, text):
        # The refusal is about the field that it names, unless it is clearly about money or permission.
        return found if says(_MONEY, text) or says(_NOT_ALLOWED, text) else "request"
    return found


def _of_failing(status: int, text: str) -> FailureReason:
    if says(_GARBLED, text):
        return "reply"
    if says(_TOOLS, text):
        return "tools"
    if "model_not_found" in text:
        return "model"
    return "credit" if status == 500 and says(_MONEY, text) else "overloaded"


_OF_STATUS: dict[int, FailureReason] = {
    200: "overloaded",  # the error object names no status, so the failure counts as temporary
    409: "overloaded",  # something is locked for a moment
    401: "key",
    403: "permission",
    404: "address",
    405: "address",
    407: "connection",
    451: "region",
}


def _of_status(status: int, text: str) -> FailureReason:
    of_model = status == 404 and says(r"\bmodel\b", text)
    return "model" if of_model else _OF_STATUS.get(status, "request")


_MOST_READ = 20_000
_MOST_JUDGED = 8000  # characters searched for a reason, so that no text blocks the event loop
MAX_WORDS = 600  # longest quotation of a provider's text, in characters


class Fault(Struct, frozen=True, kw_only=True):
    """Why a request gave no completion, as far as the reply or the connection shows."""

    kind: FailureKind
    message: str  # the endpoint's text, not redacted yet, or grue's own text about what happened
    status: int | None = None  # HTTP status of the reply, or of the error object inside it
    reason: FailureReason | None = None  # that the user's error names; `None`: `reason_of_fault` finds one
    retry_after_s: float | None = None
    received: int = 0  # rough size, in characters, of what had arrived of a stream, which may be billed
    usage: m.Usage = m.Usage()
    used_up: bool = False  # the time limit of the whole request (`RetryPolicy.timeout_s`) has passed
    remedy: str = ""  # what the user can do; empty: the user gets the usual advice for this reason


def fault_of_status(
    status: int,
    body: bytes,
    location: str | None = None,
    retry_after_s: float | None = None,
    now_s: float | None = None,
) -> Fault:
    """Return the fault of a reply with a status other than 2xx.

    `now_s`, in seconds since the epoch, is used for headers that the body quotes; `None`: do not read them.
    """
    if 300 <= status < 400:
        # Leave out user, password and query: in a redirect to a login page they may be secrets.
        target = re.sub(r"(?<=//)[^/?#]*@|[?#].*", "", location or "nowhere", flags=re.DOTALL)
        words = f"redirects to {target}"
        return Fault(kind="refused", status=status, message=words, reason="address")
    # Some endpoints send an error in the form of a stream's first event.
    first_event = re.match(rb"(?:event: *[^\n]*\n)?data: *(\{[^\n]*)", body)
    try:
        error = from_json(first_event[1] if first_event else body)
    except (ValueError, MemoryError):
        return _fault(status, _plain_words(body), "", retry_after_s)
    asked_s = _longest(retry_after_s, _wait_of(error), _wait_in_headers(error, now_s))
    return _fault(status, error_words(error), _codes(error), asked_s)


def fault_of_error(error: object) -> Fault:
    """Return the fault in an error object that came with HTTP status 200, as a body or within a stream."""
    return _fault(_error_status(error) or 200, error_words(error), _codes(error), _wait_of(error))


def fault_in(answer: m.JsonObject, missing: str) -> Fault:
    """Return the error in a body with status 200; if none, a fault with its message, or else `missing`."""
    fault, said = error_in(answer), _said_beside(answer)
    return fault or Fault(kind="invalid_reply", status=200, message=f"not a completion: {said or missing}")


def error_in(answer: m.JsonObject) -> Fault | None:
    """Return the error in an object that came with HTTP status 200; `None`: no text in it shows an error."""
    for inner in (answer.get("error"), answer.get("base_resp")):
        match inner:
            case {"status_code": 0}:
                pass  # MiniMax reports success as `status_code` 0
            case _ if error_words(inner):
                return fault_of_error(inner)
    said = _said_beside(answer)
    fault = _fault(_error_status(answer) or 200, said, _codes(answer), wait_in(said))
    known = fault.status != 200 or fault.reason == "too_long" or _of_words(200, said)
    return fault if said and known else None


def _said_beside(answer: m.JsonObject) -> str:
    return error_words({key: answer[key] for key in _SAID_BESIDE if answer.get(key)})


def _fault(status: int, words: str, codes: str, retry_after_s: float | None) -> Fault:
    asked_s = _longest(retry_after_s, wait_in(words[:_MOST_JUDGED]))
    reason = reason_of(status, words[:_MOST_JUDGED], codes, asked_s)
    kind = kind_of(reason)
    wait_s = asked_s if kind == "unavailable" else None
    return Fault(kind=kind, status=status, message=words, reason=reason, retry_after_s=wait_s)


def _longest(*waits: float | None) -> float | None:
    return max((wait for wait in waits if wait is not None), default=None)


def _wait_of(error: object) -> float | None:
    return wait_in(beginning(to_json(error).decode("utf-8", "replace"), _MOST_READ))


def _wait_in_headers(error: object, now_s: float | None) -> float | None:
    # The body of an OpenRouter error contains the headers of the provider's response, such as `Retry-After`.
    match error:
        case {"error": {"metadata": {"headers": dict() as headers}}} if now_s is not None:
            return asked_wait({str(name).lower(): str(value) for name, value in headers.items()}, now_s)
        case _:
            return None


def _codes(error: object) -> str:
    match error:
        case [first, *_]:
            return _codes(first)
        case dict():
            named = map(error.get, ("code", "type", "status", "reason", "error_code", "innererror"))
            own = " ".join(str(name)[:200] for name in named if isinstance(name, str | int | dict))
            return " ".join(filter(None, (own, *(_codes(error.get(key)) for key in ("error", "errors")))))
        case _:
            return ""


_SAID_BESIDE = ("message", "detail", "msg", "error_msg", "errors")
"""Members that may hold the text of an error, in an object that is not a completion."""

_SAID_IN = (  # members of an error object that may hold its text, the most useful one first
    "message", "detail", "Message", "msg", "status_msg", "error_msg", "description", "title", "code", "type"
)  # fmt: skip


def error_words(error: object) -> str:
    """Return the text of an error body of any shape: message or code, and the upstream provider's text."""
    match error:
        case str():
            return error
        case [first, *_]:
            return error_words(first)
        case {"error": inner} if inner:
            return error_words(inner)
        case {"errors": [first, *_], **rest} if not rest.get("message"):
            return error_words(first)
        case dict():
            said = next((error[key] for key in _SAID_IN if error.get(key)), "")
            return " ".join(filter(None, (_text(said), _upstream_words(error.get("metadata")))))
        case _:
            return ""


def _upstream_words(metadata: object) -> str:
    if not isinstance(metadata, dict):
        return ""
    provider = _text(metadata.get("provider_name"))
    raw = _text(metadata.get("raw") or metadata.get("reasons"))
    return f"({provider or 'provider'}: {raw})" if raw else f"({provider})" if provider else ""


def _text(value: object) -> str:
    return value or "" if value is None or isinstance(value, str) else to_json(value).decode()


def _error_status(error: object) -> int | None:
    if not isinstance(error, dict):
        return None
    code = error.get("code")
    if isinstance(code, str) and re.fullmatch(r"\d{3}", code):
        code = int(code)
    if isinstance(code, int) and 400 <= code < 600:
        return code
    named = (STATUS_OF_TYPE.get(error[key]) for key in ("code", "type") if isinstance(error.get(key), str))
    return next((status for status in named if status is not None), None)


STATUS_OF_TYPE = {  # by OpenAI's and Anthropic's names of errors, for errors without a status
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def _plain_words(body: bytes) -> str:
    text = beginning(body[:80_000].decode("utf-8", "replace"), _MOST_READ)
    # A tag ends before the next `<`: otherwise thousands of `<` without a `>` would take quadratic time.
    title = says(r"<title[^<>]*>([^<]{1,2000})", text)
    return title[1] if title else re.sub(r"<[^<>]*>", " ", text)


def describe(
    fault: Fault,
    *,
    base_url: str,
    model: str,
    profile: WireProfile,
    redacted: Callable[[str], str] = str,
    key: str = "",
) -> m.LlmFailure:
    """Describe a fault for people. `redacted` hides secrets; `key`: a sentence about the API key's source."""
    message = redacted(beginning(fault.message, _MOST_READ))
    reason = reason_of_fault(fault)
    return m.LlmFailure(
        kind=fault.kind,
        endpoint=shown_endpoint(base_url),
        model=model,
        status=fault.status,
        message=printable(" ".join(message[: 4 * MAX_WORDS].split()), MAX_WORDS),
        overflow=overflow_of(fault.message) if reason == "too_long" else None,
        remedy=fault.remedy or _remedy(fault, reason, base_url, model, profile, key),
        reason=reason,
        retry_after_s=fault.retry_after_s,
    )


def reason_of_fault(fault: Fault) -> FailureReason:
    """Return why a request gave no completion."""
    if fault.reason is not None:
        return fault.reason
    if fault.kind not in ("refused", "unavailable") or fault.status in (None, 200):
        return REASONS[fault.kind]
    return reason_of(fault.status, fault.message)


def _remedy(
    fault: Fault, reason: FailureReason, base_url: str, model: str, profile: WireProfile, key: str
) -> str:
    match reason:
        case "key":
            accepted = "to a key that this endpoint accepts for this model."
            return f"{key} Set {profile.key_variable} {accepted}".lstrip()
        case "permission":
            allow = "Allow the key's account what the endpoint's words name, at the provider, or set"
            allow = f"{key} Set" if key.startswith(NO_KEY) else allow
            return f"{allow} {profile.key_variable} to the key of an account that may do it."
        case "rate":
            return f"{_when(fault)}, send fewer requests at once, or ask the provider for a higher limit."
        case "overloaded":
            return f"{_when(fault)}, or choose another model."
        # Redirects are not followed, because the request's API key would be sent to the other address.
        case "model" | "address" if fault.status is not None and 300 <= fault.status < 400:
            return "Set the base URL to where it redirects, if you trust that."
        # Providers answer 404 also for a model that the account may not use.
        case "model":
            check = f"Check the model name '{model}' and the base URL, and whether the key's account may use"
            return f"{check} it. `grue doctor` names the models that are most like it."
        case "address":
            return f"Check the model name '{model}' and the base URL, which usually ends in /v1."
        case "tools" if re.search(r"--(?:enable-auto-tool-choice|jinja)\b", fault.message):
            return "Start the server with the options that its words name, or turn MCP off."
        case "tools":
            return f"Choose a model that can call tools instead of '{model}', or turn MCP off."
        case "too_long" if says(_MORE_THAN_A_MINUTE, fault.message):
            return "Set a ContextPolicy, send less, or ask the provider for more tokens a minute."
        case "too_long" if fault.status == 413 and not is_too_long(fault.message):
            return "Send less, above all fewer images, or raise the limit of the proxy before the endpoint."
        case "request" if fault.message.startswith("grue.testing: the script has no reply"):
            return (
                "Add a reply to the script of the test, or find out why the agent asked again:"
                " each reply with tool calls is followed by a request, and so is each refused answer."
            )
        case "request" if fault.message.startswith("grue.testing: "):
            return "Correct the script of the test."
        # Unless the fault is `unreachable`, the endpoint was reached, so the base URL is not the cause.
        case "connection" if fault.kind != "unreachable":
            return "Try again later; if it happens again, check the network and the proxies."
        case "connection" if "CERTIFICATE_VERIFY_FAILED" in fault.message:
            return (
                "Check the base URL and the server's certificate. If an authority of your own has signed it,"
                " set SSL_CERT_FILE to the file of that authority's certificate."
            )
        case "connection" if is_loopback(base_url) and not says(r"\[SSL|environment sets", fault.message):
            return f"Is the server running? Start it, or correct the base URL.{DOCTOR_CHECKS}"
        case "connection":
            words = "Check the base URL, the network and the proxy settings."
            return f"{words} {key}" if key.startswith(NO_KEY) else words
        # Some endpoints, such as Groq, answer a malformed call of the model with a 400.
        case "reply" if fault.status is not None and not 200 <= fault.status < 300:
            return "Choose a model that is better at calling tools."
        # Endpoints do not send garbled bytes, so a proxy or a gateway has probably changed the stream.
        case "reply" if fault.kind == "damaged":
            return "Check the proxies and gateways before the endpoint, or do not stream."
        # The body is not a completion. Often it is a web page, because /v1 is missing in the base URL.
        case "reply":
            return "Check the base URL: that of an OpenAI-compatible API usually ends in /v1."
        case _:
            return _REMEDIES[reason]


_REMEDIES: dict[FailureReason, str] = {
    "credit": "Add credit or raise the spending limit at the provider, or choose another model.",
    "region": "Choose a provider that serves this country or region.",
    "content": "The provider's moderation refused what was sent: change it, or choose another model.",
    "too_long": "Set a ContextPolicy, send less, or choose a model with a larger context window.",
    "request": "Check the model and its settings against the endpoint's words.",
    "timeout": "Raise timeout_seconds under retry (in code RetryPolicy(timeout_s=...)), set max_tokens, or"
    " choose a faster model.",
}


def _when(fault: Fault) -> str:
    wait_s = fault.retry_after_s
    if not wait_s:
        return "Try again later"
    if wait_s < 120:
        return f"Try again in {math.ceil(wait_s)} s"
    minutes = wait_s / 60
    return (
        f"Try again in {minutes:.0f} minutes" if minutes < 120 else f"Try again in {minutes / 60:.0f} hours"
    )


_TOO_LONG = (
    r"context_length_exceeded|exceed_context_size|context ?window ?exceeded"  # OpenAI, llama.cpp, LiteLLM
    r"|maximum (?:context|prompt|model) length"  # OpenAI, DeepSeek, OpenRouter, vLLM, xAI, Fireworks
    r"|prompt (?:is )?too long|input is too long"  # Anthropic, Ollama, Bedrock
    r"|exceeds? (?:the )?(?:\w+ ){0,2}context (?:window|length|size|limit)"  # Responses, llama.cpp, Ollama
    r"|context (?:window|length|size|limit)\b[^\n]{0,20}\bexceed"
    r"|exceed context limit"  # Anthropic, for prompt and max_tokens together
    r"|context the overflows|greater than the context length"  # LM Studio
    r"|token count\b[^\n]{0,20} exceeds"  # Gemini, Copilot
    r"|exceeded (?:the )?(?:model|max)\w* (?:token|context)"  # Kimi, Ollama
    r"|max_new_tokens\W{0,2} must be <="  # TGI
    r"|reduce the length of the (?:messages|input|prompt)"  # Groq, Cerebras
    r"|total number of tokens\b[^\n]{0,40}cannot exceed|size limit exceeded by \d+ tokens"  # Cohere
    r"|range of input length should be"  # DashScope
    r"|longer than the model'?s? context length"  # SGLang
    r"|must be less than(?: or equal to)? max_seq_len"  # SiliconFlow
    r"|exceeded this model context window"  # Workers AI
    r"|maximum supported sequence length"  # SambaNova
    r"|exceeds? max(?:imum)? (?:input )?length|prompt ?超长"  # Zhipu
    r"|tokens_limit_reached|body too large for \S+ model"  # GitHub's models
    r"|tokens exceed the configured limit|exceed context window"  # OpenAI, llama-cpp-python
    r"|token count is \d+ but model only supports|input context is too long"  # Vertex
    r"|too many input tokens"  # Bedrock
    r"|exceeds? max_num_tokens"  # TensorRT-LLM
    r"|cannot exceed the total tokens limit"  # watsonx
    r"|exceed max message tokens"  # Ark
    r"|prompt has too many tokens"  # AI21
    r"|max_(?:completion_)?tokens must be at least 1, got -"  # vLLM: window minus prompt is negative
    r"|request too large for [^\n]{0,200}requested"  # OpenAI, Groq: over the limit per minute
)
_MORE_THAN_A_MINUTE = r"request too large for"  # alone over the limit of a minute: waiting does not help
_RATE = r"per (?:minute|hour|day)|\bTPM\b|\bTPD\b|rate.?limit|please wait"
"""Signs of a limit of tokens per time, after which waiting helps. `_TOO_LONG` may match these texts too."""

_SIZE = r"([1-9][\d,]{1,9})"
_WINDOW = (
    rf"maximum (?:context|prompt|model) length(?: is|:| of)? ?{_SIZE}"
    rf"|> ?{_SIZE} maximum"
    rf"|context limit: ?\d+ ?\+ ?\d+ ?> ?{_SIZE}"
    rf"|tokens allowed \(?{_SIZE}"
    rf"|with {_SIZE} maximum context"
    rf"|context size \({_SIZE}"
    rf"|context length of only {_SIZE}"
    rf"|token limit: ?{_SIZE}"
    rf"|limit (?:is|of) {_SIZE}"
    rf"|must be <= {_SIZE}"
    rf"|cannot exceed {_SIZE}"
    rf"|range of input length should be \[\d+, ?{_SIZE}"
    rf"|context length \({_SIZE}|context length is only {_SIZE}"
    rf"|max_seq_len \({_SIZE}"
    rf"|window limit \({_SIZE}|context window of {_SIZE}"
    rf"|sequence length is just {_SIZE}"
    rf"|max size: {_SIZE}"
    rf"|configured limit of {_SIZE}|only supports up to {_SIZE}|max input tokens: {_SIZE}"
    rf"|max_num_tokens \({_SIZE}|maximum input length \({_SIZE}|total tokens limit {_SIZE}"
    rf"|limit:? {_SIZE}"
)
_MESSAGES = rf"\b{_SIZE} (?:in the messages|of text input|in the prompt|tokens from the input messages)"
"""The prompt's size in texts that first name the size of prompt and reply together."""

_PROMPT = (
    rf"resulted in {_SIZE}"
    rf"|too long:? {_SIZE}"
    rf"|context limit: ?{_SIZE}"
    rf"|token count (?:of )?\(?{_SIZE}"
    rf"|contains (?:about |at least )?{_SIZE}(?: input)? tokens|passed {_SIZE} input tokens"
    rf"|has {_SIZE} input tokens"
    rf"|request \({_SIZE} tokens"
    rf"|\(length {_SIZE}\)|prompt length \({_SIZE}|input tokens {_SIZE}"
    rf"|current length is {_SIZE}"
    rf"|input \({_SIZE} tokens|prompt_tokens \({_SIZE}|max_total_tokens \({_SIZE}"
    rf"|output tokens \({_SIZE}|requested tokens \({_SIZE}|prompt is {_SIZE} tokens"
    rf"|token count(?: is|:) {_SIZE}|given: {_SIZE} `?inputs|received {_SIZE}"
    rf"|requested:? (?:about |~)?{_SIZE}\b(?! output)"
)
_MOST_READ_OF_OVERFLOW = 4000


def is_too_long(words: str, status: int | None = None) -> bool:
    """Return whether a refusal's text and codes, or its status 413, say that the request was too long."""
    words = words[:_MOST_READ_OF_OVERFLOW]
    told = says(_TOO_LONG, words) and (says(_MORE_THAN_A_MINUTE, words) or not says(_RATE, words))
    return bool(told) or status == 413


def overflow_of(words: str) -> ContextOverflow:
    """Return the sizes that the text of an overflow error names."""
    words = words[:_MOST_READ_OF_OVERFLOW]
    prompt = _first(_MESSAGES, words) or _first(_PROMPT, words)
    return ContextOverflow(window_tokens=_first(_WINDOW, words), prompt_tokens=prompt)


def _first(pattern: str, words: str) -> int | None:
    found = says(pattern, words)
    return None if found is None else int(next(filter(None, found.groups())).replace(",", ""))
