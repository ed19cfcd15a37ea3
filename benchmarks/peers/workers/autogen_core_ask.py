"""An ask by AutoGen Core: `send_message` to a routed agent on the single-threaded runtime."""

import asyncio
import time
from dataclasses import dataclass

from ask_loop import serve
from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler


@dataclass
class Returned:
    """What grue's side sends, field by field."""

    batch: int
    call_id: str
    content: str
    duration_s: float


class Echo(RoutedAgent):
    def __init__(self) -> None:
        super().__init__("echoes")

    @message_handler
    async def answer(self, message: Returned, ctx: MessageContext) -> Returned:  # noqa: ARG002 - the framework's name
        return message


async def asks(count: int) -> float:
    runtime = SingleThreadedAgentRuntime()
    await Echo.register(runtime, "echo", Echo)
    runtime.start()
    body, echo = Returned(1, "call_1", "a brass lantern", 0.01), AgentId("echo", "default")
    # It makes the agent when the first message comes.
    await runtime.send_message(body, echo)
    begun = time.perf_counter()
    for _ in range(count):
        await runtime.send_message(body, echo)
    took = time.perf_counter() - begun
    await runtime.stop()
    return took / count * 1e6


if __name__ == "__main__":
    serve(lambda count: asyncio.run(asks(count)))
