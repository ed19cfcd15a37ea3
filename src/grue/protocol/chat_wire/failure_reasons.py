"""Tell why an endpoint refused a request: a matter of money, of time, of the key, of the model and so on.

To add a provider's words, add a pattern; `tests/unit/protocol/chat_wire/provider_errors.jsonl` has what
providers write. There is hardly a common code: a 429 may mean used-up credit or a limit that is over in a
second, and a 400, a 403 or a 404 may mean nearly anything. So the words decide first, in the order of the
table, and the status only where they say nothing. Addresses in the words do not count: many texts about a
rate limit link to the provider's billing page.
"""

import re
from typing import assert_never

from grue.policies import FailureKind, FailureReason
from grue.protocol.chat_wire.context_overflow import overflow_in

RETRYABLE = frozenset({408, 424, 429, 498, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529, 530})
"""HTTP statuses after which a retry can help. Those from 520 on are a proxy's, about the server behind it;
424 is that of a model that failed behind its server, 498 Groq's for a tier without capacity."""

_REFUSALS = frozenset({200, 400, 401, 402, 403, 404, 406, 409, 410, 412, 422, 451})
"""Statuses of errors whose words decide. 200 is that of an error object without a status of its own."""


def _words(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


_URL = re.compile(r"https?://\S+")

_MONEY = _words(
    r"insufficient[_ ](?:account[_ ])?(?:quota|credit|fund|balance)|credit balance|credit limit",
    r"out of credit|spend(?:ing)?[ _-]?limit|budget (?:has been )?exceeded|exceeded budget|budget_exceeded",
    r"(?:no|any|enough|requires? more|available) credits|key limit exceeded|prepa(?:id|yment)|arrear",
    r"credits (?:have been|are) (?:depleted|exhausted|used)|(?:depleted|used up) (?:your|all)",
    r"/ month|per month|monthly|account is in good standing|account (?:is )?suspended",
    r"payment (?:is )?(?:required|failed|overdue)",
    r"free tier of the model has been exhausted|FreeTierOnly|free allocation|\blimit: 0\b",
    r"balance is (?:not enough|insufficient)|not enough balance|usage limits?\. you will regain",
    r"billing[_ ](?:error|hard|not)|requires billing|current_quota_error",
    r"extra usage is required|余额|欠费|充值",
)
_PERHAPS_MONEY = _words(r"current quota|billing|\bbudget\b")
_TIME = _words(
    r"rate.?limit|per[ -](?:min|second|hour|day)|/ ?min|\b[RT]P[MDS]\b|too.many.requests|throttl|concurren",
    r"(?:try|retry)\w*(?: your request)? (?:again )?(?:in|after) (?:about )?\d|please wait (?:\d|before)",
    r"high traffic|freq(?:uency|uently)|slow down|resets? (?:at|in)|resource has been exhausted",
    r"limit_requests|速率|频率|并发|请求过多|使用上限",
)
_BUSY = _words(
    r"overloaded|capacity|currently loading|server (?:is )?busy|temporarily unavailable|not ready|繁忙"
)
_REGION = _words(
    r"unsupported_country|(?:country|region|territory|location)\b[^\n]{0,40}not (?:supported|available)",
    r"not (?:available|supported|accessible) in (?:your|this) (?:country|region|location)",
)
_CONTENT = _words(
    r"content[ _-]?(?:management )?(?:polic|filter)|content (?:violates|exists risk)|responsible ?ai",
    r"moderation|flagged|data_?inspection|inappropriate|prohibited|high risk",
    r"safety (?:system|setting|check|filter|reason|polic)|usage (?:polic|guidelines)",
    r"new_sensitive|sensitive content|不安全|敏感",
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
    r"permission '[^\n]{0,80}denied",
    r"(?:insufficient|not have sufficient|lacks|missing)\b[^\n]{0,40}(?:permission|scope|action)",
)
_MODEL = _words(
    r"models?\b[^\n]{0,120}(?:not exist|not found|not available|unavailable|deprecat|decommission)",
    r"models?\b[^\n]{0,120}(?:retired|removed)",
    r"models?\b[^\n]{0,120}(?:no longer|unknown|disabled|not loaded|(?:not|n.t) support)|not found the model",
    r"(?:invalid|unknown|unsupported|incorrect|no such) model\b|model_not_|not a valid model|specified model",
    r"no models? loaded|load model|no (?:allowed )?(?:providers|endpoints)\b|no deployments|model identifier",
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
    r"signature|login fail|身份验证|令牌",
)
_GARBLED = _words(r"\b(?:tool_use_failed|json_validate_failed|output_parse_failed|MALFORMED_FUNCTION_CALL)\b")
"""The model's own output was invalid, so another one may be valid."""

_BY_WORDS: tuple[tuple[FailureReason, re.Pattern[str]], ...] = (
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
"""What words mean; the first that are found decide."""


def reason_of(status: int, words: str, codes: str = "", asked_s: float | None = None) -> FailureReason:
    """Return why an endpoint refused a request.

    Args:
        status: The HTTP status, or that of the error object; 200 if it has none.
        words: The provider's message.
        codes: The names and numbers that the error object has beside the message.
        asked_s: The wait that the reply asks for.
    """
    text = f"{_URL.sub(_fragment, words)}\n{codes}"
    if status < 400 and status != 200:
        return "address"
    if status == 413 or overflow_in(words, status) is not None:
        return "too_long"
    if status == 429:
        return _of_limit(text, asked_s)
    if status in _REFUSALS:
        return _of_words(status, text) or _of_status(status)
    if status in RETRYABLE:
        return _of_failing(status, text)
    return _of_status(status)


def kind_of(reason: FailureReason) -> FailureKind:
    """Return the kind of failure that a reason means."""
    match reason:
        case "rate" | "overloaded":
            return "unavailable"
        case "reply":
            return "invalid_reply"
        case "timeout":
            return "timed_out"
        case "connection":
            return "unreachable"
        case "key" | "permission" | "credit" | "region" | "model" | "tools" | "content" | "too_long":
            return "refused"
        case "request" | "address":
            return "refused"
    assert_never(reason)


def reason_of_kind(kind: FailureKind) -> FailureReason:
    """Return the reason of a failure without a reply, from how the request failed."""
    match kind:
        case "refused":
            return "request"
        case "unavailable" | "unreachable":
            return "connection"
        case "timed_out":
            return "timeout"
        case "invalid_reply" | "damaged":
            return "reply"
    assert_never(kind)


def kind_of_status(status: int, words: str = "") -> FailureKind:
    """Return the kind of failure that an HTTP status other than 2xx stands for.

    Args:
        status: The status of the reply, or of the error object inside it.
        words: The provider's message and code. A 429 can also mean that the credit is used up, and a 400 that
            the model's output was garbled.
    """
    return kind_of(reason_of(status, words))


def _fragment(url: re.Match[str]) -> str:
    """Return the part of an address that tells the reason: DashScope names the quota in the fragment."""
    return "#token-limit" if "#token-limit" in url[0] else " "


def _of_limit(text: str, asked_s: float | None) -> FailureReason:
    """Tell a limit of time from one of money. Where both are spoken of, the clearer words count."""
    # OpenRouter's limit of a day says what credits would do; DashScope calls a limit of tokens a quota.
    if _MONEY.search(text) and "-per-day" not in text and "#token-limit" not in text:
        return "credit"
    if _BUSY.search(text):
        return "overloaded"
    timed = asked_s is not None or _TIME.search(text) or "#token-limit" in text
    return "credit" if _PERHAPS_MONEY.search(text) and not timed else "rate"


def _of_words(status: int, text: str) -> FailureReason | None:
    if status == 402:
        return "credit"
    found = next((reason for reason, pattern in _BY_WORDS if pattern.search(text)), None)
    if status in (400, 422) and found in ("model", "permission", "credit") and _A_FIELD.search(text):
        # A field that this model does not take, not the model.
        return found if _MONEY.search(text) or _NOT_ALLOWED.search(text) else "request"
    return found


def _of_failing(status: int, text: str) -> FailureReason:
    """Return the reason for a status of a failing server. Few words mean that it will fail again."""
    if _GARBLED.search(text):
        return "reply"
    if _TOOLS.search(text):
        return "tools"
    if status == 500 and _MONEY.search(text):
        return "credit"
    return "overloaded"


def _of_status(status: int) -> FailureReason:
    match status:
        case 200:
            return "overloaded"
        case 401 | 407:
            return "key"
        case 403:
            return "permission"
        case 404 | 405:
            return "address"
        case 451:
            return "region"
        case _:
            return "request"
