"""A conversation as a text."""

from grue.cli.chat.talk import transcript
from grue.messages import AssistantReply, SystemText, ToolMessage, UserText


def test_what_was_said_is_there_and_nothing_can_escape() -> None:
    text = transcript(
        [
            SystemText("instructions"),
            UserText("hello\x1b[31m"),
            AssistantReply(),
            AssistantReply(content="hi"),
            ToolMessage("c1", "a ``` fence\nand a line"),
        ]
    )
    assert text == (
        "## User\n\nhello\\u001b[31m\n\n"
        "## Assistant\n\nhi\n\n"
        "### Result\n\n````\na ``` fence\nand a line\n````\n"
    )
