"""Ask a model in your own way: write an LLM actor or a blocking client with the same rules as `Runner`.

The parts are pure, except `LlmEndpoint` and the mailbox: a `Conversation` encodes what was said, a
`WireProfile` says what an endpoint accepts, and `attempt_step` decides when a request is sent again. Pass a
factory for your actor to `Runner(llm=...)`; see `LlmFactory`.
"""

from grue.actors.llm import LentConversation
from grue.engine.wiring import LendingFactory, LlmFactory
from grue.llm_transport.endpoint import LlmEndpoint
from grue.llm_transport.exchange import MAX_REPLY_BYTES, Answered, fault_of_body
from grue.llm_transport.request_gate import (
    Permit,
    RequestOutcome,
    WantedRequest,
    not_sent,
    outcome_of,
    permit_for,
    permit_for_blocking,
)
from grue.llm_transport.through_httpx import fault_of_exchange, http_timeout
from grue.protocol.chat_wire.conversation import Conversation
from grue.protocol.chat_wire.failures import MAX_WORDS, Fault, fault_of_status, is_loopback, shown_endpoint
from grue.protocol.chat_wire.json_text import from_json, to_json
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.reply import Reply
from grue.protocol.chat_wire.wire_format import Choice
from grue.protocol.completion_attempts import (
    AdaptProfile,
    AttemptEvent,
    CompletionWanted,
    Finish,
    ReplyRead,
    RequestFailed,
    SendRequest,
    Unsent,
    Wait,
    attempt_step,
)
from grue.protocol.content_encoding import BodyTooLongError, ContentDecoder, EncodingError
from grue.protocol.model_support import ToolSupportPolicy, checked_support, supports_tool_calling
from grue.protocol.prices import Price
from grue.protocol.retry import kind_of_status, retry_after
from grue.runtime.actor import Actor, reply
from grue.runtime.channel import Mailbox
from grue.runtime.daemon_thread import call_in_daemon_thread

__all__ = [
    "MAX_REPLY_BYTES",
    "MAX_WORDS",
    "Actor",
    "AdaptProfile",
    "Answered",
    "AttemptEvent",
    "BodyTooLongError",
    "Choice",
    "CompletionWanted",
    "ContentDecoder",
    "Conversation",
    "EncodingError",
    "Fault",
    "Finish",
    "LendingFactory",
    "LentConversation",
    "LlmEndpoint",
    "LlmFactory",
    "Mailbox",
    "ModelSettings",
    "Permit",
    "Price",
    "Reply",
    "ReplyRead",
    "RequestFailed",
    "RequestOutcome",
    "SendRequest",
    "ToolSupportPolicy",
    "Unsent",
    "Wait",
    "WantedRequest",
    "WireProfile",
    "attempt_step",
    "call_in_daemon_thread",
    "checked_support",
    "fault_of_body",
    "fault_of_exchange",
    "fault_of_status",
    "from_json",
    "http_timeout",
    "is_loopback",
    "kind_of_status",
    "not_sent",
    "outcome_of",
    "permit_for",
    "permit_for_blocking",
    "reply",
    "retry_after",
    "shown_endpoint",
    "supports_tool_calling",
    "to_json",
]
