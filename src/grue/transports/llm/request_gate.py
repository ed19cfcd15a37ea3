"""The gate that each request to a model passes, if the process has one.

A program that shares limits between processes, such as a fleet, sets a gate for each process. The LLM actor
and the Zork host's client then ask it before each request, wait until the request may start, and report what
became of it. Without a gate nothing is asked. The gate comes beside the budget of a turn or an episode, which
stays in the agent. `grue.runtime.processes.server_gate` is the same for server processes.
"""

from typing import Protocol

from msgspec import Struct

from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.reply import Reply
from grue.transports.llm.exchange import Answered


class WantedRequest(Struct, frozen=True, kw_only=True):
    """A request that is about to be sent.

    Attributes:
        model: The model that is asked.
        prompt_bytes: Length of the body. No tokenizer makes more tokens than bytes.
        max_tokens: Most tokens of the reply; `None`: the endpoint decides.
    """

    model: str
    prompt_bytes: int
    max_tokens: int | None = None


class RequestOutcome(Struct, frozen=True, kw_only=True):
    """The result of a request.

    Attributes:
        sent: Whether any of it may have left. A request that was not sent costs nothing.
        status: HTTP status; `None`: no reply.
        retry_after_s: The wait that the endpoint asked for.
        input_tokens: Tokens of the prompt, as counted by the endpoint; `None`: unknown.
        output_tokens: Tokens of the reply; `None`: unknown.
        cost_usd: What the endpoint says it cost; `None`: unknown.
    """

    sent: bool = True
    status: int | None = None
    retry_after_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class Permit(Protocol):
    """The permission to send one request."""

    def settle(self, outcome: RequestOutcome) -> None:
        """Report the result of the request. Called once; does not block."""


class RequestGate(Protocol):
    """Decides when a request may be sent. Used from any event loop and thread."""

    async def admit(self, wanted: WantedRequest) -> "Permit | str":
        """Wait until the request may start. Return the permit, or a sentence that says why it never may.

        A cancellation gives up the wait; the request then counts as not sent.
        """


_gates: list[RequestGate] = []


def set_request_gate(gate: RequestGate | None) -> None:
    """Set the gate of this process; `None`: requests are not asked for."""
    _gates[:] = [] if gate is None else [gate]


def request_gate() -> RequestGate | None:
    """Return the gate of this process; `None` if it has none."""
    return _gates[0] if _gates else None


async def permit_for(wanted: WantedRequest) -> "Permit | str | None":
    """Wait until the gate lets a request pass; `None`: there is no gate. Otherwise as `RequestGate.admit`."""
    gate = request_gate()
    return None if gate is None else await gate.admit(wanted)


def not_sent(why: str) -> Fault:
    """Return the fault of a request that the gate has refused."""
    return Fault(kind="refused", message=f"The request was not sent: {why}.")


def request_outcome(answer: Answered | Fault, reply: Reply | Fault) -> RequestOutcome:
    """Return the result of a request that was sent, from the exchange and the reply."""
    usage = reply.usage if isinstance(reply, Reply) else None
    return RequestOutcome(
        status=answer.status,
        retry_after_s=reply.retry_after_s if isinstance(reply, Fault) else None,
        input_tokens=None if usage is None else usage.input_tokens,
        output_tokens=None if usage is None else usage.output_tokens,
        cost_usd=None if usage is None else usage.cost_usd,
    )
