"""The table of wire formats by name."""

from collections.abc import Mapping

from grue.protocol.chat_wire.anthropic_messages import AnthropicMessages
from grue.protocol.chat_wire.chat_completions import ChatCompletions
from grue.protocol.chat_wire.profile import WireName
from grue.protocol.chat_wire.responses import Responses
from grue.protocol.chat_wire.wire_format import WireFormat

FORMATS: Mapping[WireName, WireFormat] = {
    "chat_completions": ChatCompletions(),
    "responses": Responses(),
    "messages": AnthropicMessages(),
}
