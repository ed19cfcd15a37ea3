"""Replace the errors that the SDK's HTTP transports make up by our own faults and texts."""

import mcp_types as types
import pydantic
from mcp.shared.message import SessionMessage

from grue.tool_sessions.failures import WireFault, first_fault
from grue.transports.mcp.http_faults import CUT_SHORT, NOT_A_MESSAGE
from grue.transports.mcp.incoming import refusal_of


def with_own_fault(item: SessionMessage) -> SessionMessage:
    """Return a message. An error that the SDK's transport made up gets our own fault and text."""
    message = item.message
    if isinstance(message, types.JSONRPCError):
        fault = _fault_of(message.error)
        if fault is not None:
            message.error = types.ErrorData(code=message.error.code, message=fault.cause, data=fault)
    return item


def _fault_of(error: types.ErrorData) -> WireFault | None:
    if error.code == types.CONNECTION_CLOSED and error.message.startswith("SSE stream ended"):
        return CUT_SHORT
    if error.code == types.CONNECTION_CLOSED and error.message.startswith("SSE stream failed: "):
        words = error.message.removeprefix("SSE stream failed: ")
        return WireFault(f"its stream of events is not usable: {words}", ends_session=False)
    if error.code == types.PARSE_ERROR and error.message.startswith("Failed to parse SSE message: "):
        return NOT_A_MESSAGE
    return None


def refusal_in(error: Exception) -> types.JSONRPCError | None:
    """Return the error for an answer that the transport could not read; `None` if it was no answer."""
    if not isinstance(error, pydantic.ValidationError):
        return None
    values = (each["input"] for each in error.errors())
    return next((refusal_of(value) for value in values if isinstance(value, dict)), None)


def broken_by(error: Exception) -> WireFault:
    """Return the fault of a transport that ended with an exception."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, RuntimeError):  # the SSE transport ended before the server named an endpoint
        return WireFault("its stream of events ended before it named an endpoint", ends_session=True)
    return WireFault(f"its stream of events is not usable: {first_fault(error)}", ends_session=True)
