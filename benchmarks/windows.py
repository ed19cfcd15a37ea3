"""What a tool call costs in a turn that is much longer than the model's context window."""

import json
import statistics
import time

import httpx
from measuring import Bar, Effort, Section, figure
from scaling import NEAR_LINEAR

from grue import ContextPolicy, FunctionTools, LlmSettings, Runner, TurnLimits, TurnRequest
from grue.testing.llm_server import ContextWindow
from grue.transports.llm.endpoint import LlmEndpoint

WINDOW_TOKENS = 32_000
RESULT = "You are in a maze of twisty little passages, all alike. " * 360
"""20 kB."""


class Windowed(httpx.AsyncBaseTransport):
    """A model in this process that calls a tool again and again, and refuses prompts beyond its window.

    Attributes:
        cpu_ms: CPU time of the process before each request, without the time of this transport.
        sent_bytes: The size of each request.
        overflows: Number of requests that were too long.
    """

    def __init__(self, calls: int) -> None:
        self.cpu_ms: list[float] = []
        self.sent_bytes: list[int] = []
        self.overflows = 0
        self._left = calls
        self._answered = time.process_time()
        self._window = ContextWindow(WINDOW_TOKENS)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the next reply, with the number of the prompt's tokens, or a refusal."""
        self.cpu_ms.append((time.process_time() - self._answered) * 1e3)
        body = await request.aread()
        self.sent_bytes.append(len(body))
        response = self._reply(json.loads(body))
        self._answered = time.process_time()
        return response

    def _reply(self, chat: dict[str, object]) -> httpx.Response:
        prompt = self._window.count(chat)
        refusal = self._window.refusal(prompt, chat)
        if refusal is not None:
            self.overflows += 1
            return httpx.Response(refusal.status, content=refusal.body)
        message: dict[str, object] = {"role": "assistant", "content": "done"}
        if self._left and "tools" in chat:
            self._left -= 1
            function = {"name": "maze.look", "arguments": "{}"}
            call = {"id": f"call-{self._left}", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        usage = {"prompt_tokens": prompt, "completion_tokens": 20}
        return httpx.Response(200, json={"choices": [{"message": message}], "usage": usage})


def look() -> str:
    """Look around."""
    return RESULT


def window_section(effort: Effort) -> Section:
    """Show that a call costs the same late in a long turn as early, and that no request is too long."""
    calls = effort.calls
    model = Windowed(calls)
    settings = LlmSettings(base_url="http://127.0.0.1/v1", model="windowed", force_tool_support=True)
    with Runner(
        llm=LlmEndpoint(settings, transport=model),
        servers={"maze": FunctionTools({"look": look})},
        limits=TurnLimits(max_tool_iterations=calls + 1, max_result_chars=100_000),
        context=ContextPolicy(window_tokens=WINDOW_TOKENS),
    ) as runner:
        outcome = runner.run_turn(TurnRequest[str](system="You play.", user="Find the way out."))
    if len(outcome.tool_calls) != calls:
        raise RuntimeError(f"{len(outcome.tool_calls)} tool calls instead of {calls}")
    third = calls // 3
    early, late = slice(third, 2 * third), slice(calls - third, calls)
    cpu = [statistics.fmean(model.cpu_ms[part]) for part in (early, late)]
    sent = [statistics.fmean(model.sent_bytes[part]) for part in (early, late)]
    return Section(
        "window",
        f"A turn of {calls} calls with results of {len(RESULT) // 1000} kB, under a window of 32k tokens",
        f"Measured: this process's CPU from one reply to the next request, for calls {third + 1}-{2 * third}"
        f" and {calls - third + 1}-{calls}; the model in the same process with its own work taken out.",
        [
            figure("CPU, a call in the middle of the turn", "ms", model.cpu_ms[early]),
            figure("CPU, a call at its end", "ms", model.cpu_ms[late]),
        ],
        [
            Bar(
                "`ContextPolicy`, long turn: CPU of a late call, as a ratio to an early one's",
                cpu[1] / cpu[0],
                NEAR_LINEAR,
                "x",
            ),
            Bar(
                "`ContextPolicy`, long turn: size of a late request, as a ratio to an early one's",
                sent[1] / sent[0],
                1.2,
                "x",
            ),
            Bar(
                "`ContextPolicy`, long turn: requests that were too long for the window",
                float(model.overflows),
                0.0,
                "",
            ),
        ],
        {"requests": f"{len(model.sent_bytes)}, the longest {max(model.sent_bytes)} bytes"},
    )
