"""The table of wire formats."""

from collections.abc import Mapping
from typing import Literal

from grue.protocol.chat_wire.anthropic_messages import AnthropicMessages
from grue.protocol.chat_wire.chat_completions import ChatCompletions
from grue.protocol.chat_wire.responses import Responses
from grue.protocol.chat_wire.wire_format import WireFormat

WireName = Literal["chat_completions", "responses", "messages"]

_ALL: list[WireFormat] = [ChatCompletions(), Responses(), AnthropicMessages()]
FORMATS: Mapping[str, WireFormat] = {each.name: each for each in _ALL}
