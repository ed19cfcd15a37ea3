"""What a conversation's methods take, beside the same words in a `TurnRequest`."""

from typing import get_type_hints

from grue import TurnRequest
from grue.engine.conversations.conversation import AskOptions

OF_THE_CONVERSATION = {"user", "system", "turn", "history", "conversation", "json_results"}
"""Fields that `ask` gets as its first argument, or that the conversation sets."""


def test_ask_takes_each_field_of_a_turn_that_is_not_the_conversations() -> None:
    fields = set(TurnRequest.__struct_fields__)
    assert get_type_hints(AskOptions).keys() == fields - OF_THE_CONVERSATION - {"answer"}
