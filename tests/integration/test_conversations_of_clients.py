"""Conversations with a model that the host reaches by itself: an injected client, or an actor of its own."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grue import ContextPolicy, Conversation, FunctionTools, Runner, ToolPolicy, ToolRule
from grue.errors import ApprovalPending, ConversationError
from grue.hosts.zork.client_actor import client_actor

POLICY = ToolPolicy(rules=(ToolRule(tools=("box.delete",), verdict="ask"),), parking=True)


class Client:
    """An SDK's client that notes what it is asked, and deletes when told to tidy up."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, Any]]] = []
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def create(self, *, model: str, messages: list[dict[str, Any]], **how: Any) -> dict[str, Any]:
        self.asked.append(messages)
        message: dict[str, Any] = {"role": "assistant", "content": f"Answer {len(self.asked)}."}
        if "Tidy" in str(messages[-1]["content"]):
            names = [tool["function"]["name"] for tool in how["tools"]]
            call = {"name": next(each for each in names if "delete" in each), "arguments": '{"name": "old"}'}
            message = {"tool_calls": [{"id": f"c{len(self.asked)}", "type": "function", "function": call}]}
        return {"choices": [{"message": message}], "usage": {"prompt_tokens": len(str(messages)) // 4}}


def runner_for(client: Client, deleted: list[str], trace: Path | None = None, **how: Any) -> Runner:
    def delete(name: str) -> str:
        deleted.append(name)
        return "x" * int(how.get("size", 1))

    return Runner(
        llm=client_actor(client, "gpt-4o"),
        servers={"box": FunctionTools({"delete": delete})},
        trace=trace,
        tool_policy=how.get("tool_policy", POLICY),
        context=how.get("context"),
    )


def test_an_injected_client_continues_a_conversation_also_after_a_park(tmp_path: Path) -> None:
    client, deleted, path = Client(), list[str](), tmp_path / "talk.jsonl"
    first = runner_for(client, deleted, tmp_path / "trace.jsonl")
    with first, first.conversation("Be brief.", path=path) as talk:
        assert talk.ask("Hello?").response == "Answer 1."
        with pytest.raises(ApprovalPending):
            talk.ask("Tidy up.")
    with runner_for(client, deleted) as later, Conversation.load(path, later) as talk:
        assert talk.resume([question.approve() for question in talk.questions]).response == "Answer 3."
        assert talk.ask("And now?").response == "Answer 4."
    assert deleted == ["old"]
    roles = [message["role"] for message in client.asked[-1]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "tool", "assistant", "user"]


def test_an_injected_client_has_a_context_policy(tmp_path: Path) -> None:
    client, deleted = Client(), list[str]()
    context = ContextPolicy(window_tokens=3000, reply_tokens=0, max_summaries=0)
    runner = runner_for(client, deleted, context=context, tool_policy=ToolPolicy(), size=5000)
    with runner:
        talk = runner.conversation("Be brief.")
        for _ in range(3):
            talk.ask("Tidy up.")
    results = [message["content"] for message in client.asked[-1] if message["role"] == "tool"]
    assert [len(each) > 4000 for each in results] == [False, False, True]


def test_after_an_injected_clients_overflow_the_policy_asks_again_with_less() -> None:
    class Windowed(Client):
        def create(self, **how: Any) -> dict[str, Any]:
            reply = super().create(**how)
            size = len(str(how["messages"]))
            if size > 12_000:
                error = RuntimeError(f"This model's maximum context length is 3000 tokens, you sent {size}.")
                error.status_code = 400  # type: ignore[attr-defined]
                raise error
            return reply

    client, deleted = Windowed(), list[str]()
    context = ContextPolicy(reply_tokens=0, max_summaries=0)
    with runner_for(client, deleted, context=context, tool_policy=ToolPolicy(), size=5000) as runner:
        talk = runner.conversation("Be brief.")
        answers = [talk.ask("Tidy up.").response for _ in range(3)]
    assert answers == ["Answer 2.", "Answer 4.", "Answer 7."]
    results = [message["content"] for message in client.asked[-1] if message["role"] == "tool"]
    assert [len(each) > 4000 for each in results] == [False, False, True]


def test_a_factory_that_cannot_continue_conversations_is_refused() -> None:
    client = client_actor(Client(), "gpt-4o")

    def plain(*actors: Any) -> Any:
        return client(*actors)

    with Runner(llm=plain) as runner, pytest.raises(ConversationError, match="LendingFactory"):
        runner.conversation().ask("Hello?")
