"""A conversation as a text for people: `/save FILE.md`."""

from collections.abc import Iterable

from grue import messages as m
from grue.runtime.safe_text import written_out


def transcript(history: Iterable[m.ConversationItem | m.AssistantReply]) -> str:
    """Return the conversation as Markdown. The system text is left out."""
    parts: list[str] = []
    for item in history:
        match item:
            case m.UserText(text=text):
                parts.append(f"## User\n\n{text}")
            case m.AssistantReply(content=content, tool_calls=calls):
                lines = [content] if content else []
                lines += [f"- called `{call.name}` with `{call.arguments}`" for call in calls]
                if lines:
                    parts.append("## Assistant\n\n" + "\n".join(lines))
            case m.ToolMessage(content=content):
                parts.append(f"### Result\n\n{_fenced(content)}")
            case _:
                pass
    return written_out("\n\n".join(parts)) + "\n"


def _fenced(text: str) -> str:
    """Return a text in a code block whose fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
