"""The streams of change notices that a session listens to: `subscriptions/listen` of 2026-07-28.

The answer to this request comes when its stream ends, so a task of its own waits for it. What the host gets
for its request is the server's acknowledgement. The changes themselves reach the session as notifications,
and become `updated` notices there, as with `resources/subscribe` of older revisions.

Importing this imports `mcp`, which is slow. Import it inside functions.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import anyio
import mcp_types as types
from mcp.client.session import ClientSession
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost, listen
from mcp.shared.exceptions import MCPError as SdkError

from grue.runtime.loops.beside_loop import BackgroundTasks
from grue.tool_sessions.failures import first_fault
from grue.tool_sessions.notices import Notify

LISTEN = "subscriptions/listen"
CANCEL = "notifications/cancelled"
MAX_STREAMS = 32
"""How many streams a session may have at the same time."""


class Subscriptions:
    """The open streams of one session. The same task enters and leaves it, and any task may use it.

    Leaving ends all streams, and tells the server so.

    Args:
        session: Sends the requests.
        notify: Receives an `updates_ended` notice for each stream that ends while the session goes on.
    """

    def __init__(self, session: ClientSession, notify: Notify) -> None:
        self._session = session
        self._notify = notify
        self._tasks = BackgroundTasks()
        self._open: dict[str, anyio.CancelScope] = {}
        self._starting = 0

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._tasks.__aexit__(exc_type, exc, tb)

    async def start(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Open a stream, and return what the server has agreed to once it says so.

        Cancelling this before then ends the stream.

        Args:
            params: As in the specification: `notifications` says what to listen to.

        Returns:
            `subscriptionId`, and `notifications`: the part of the request that the server agreed to.

        Raises:
            SdkError: The server refused, the session has too many streams or too old a revision, `params` are
                not usable, or the connection broke.
        """
        if len(self._open) + self._starting >= MAX_STREAMS:
            raise SdkError(types.INVALID_REQUEST, f"{MAX_STREAMS} streams are open, which is the most")
        try:
            wanted = types.SubscriptionFilter.model_validate(params.get("notifications") or {}, by_name=False)
        except ValueError as error:
            raise SdkError(types.INVALID_PARAMS, f"notifications: {first_fault(error)}") from error
        stream = _Stream()
        self._starting += 1
        try:
            self._tasks.start(lambda: self._follow(stream, wanted))
            await stream.settled.wait()
        except BaseException:
            stream.scope.cancel()
            raise
        finally:
            self._starting -= 1
        if stream.refused is not None:
            raise stream.refused
        return stream.agreed

    def end(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """End a stream by its `subscriptionId`, which `notifications/cancelled` names as `requestId`.

        Raises:
            SdkError: There is no such stream.
        """
        scope = self._open.pop(str(params.get("requestId")), None)
        if scope is None:
            raise SdkError(types.INVALID_PARAMS, f"no stream {params.get('requestId')!r} is open")
        scope.cancel()
        return {}

    async def _follow(self, stream: "_Stream", wanted: types.SubscriptionFilter) -> None:
        """Keep a stream open until the server, the host or the session ends it."""
        name, why = "", ""
        try:
            with stream.scope:
                async with listen(
                    self._session,
                    tools_list_changed=bool(wanted.tools_list_changed),
                    prompts_list_changed=bool(wanted.prompts_list_changed),
                    resources_list_changed=bool(wanted.resources_list_changed),
                    resource_subscriptions=wanted.resource_subscriptions or (),
                ) as subscription:
                    name = str(subscription.subscription_id)
                    self._open[name] = stream.scope
                    stream.agree(name, subscription.honored)
                    async for _ in subscription:
                        pass  # the session has passed it on as a notice
                    why = "the server has ended it"
        except ListenNotSupportedError as error:
            stream.refuse(SdkError(types.METHOD_NOT_FOUND, _too_old(error.negotiated_version)))
        except (SubscriptionLost, SdkError) as error:
            refusal = error if isinstance(error, SdkError) else SdkError(types.INTERNAL_ERROR, str(error))
            stream.refuse(refusal)
            why = f"it broke off: {error.__cause__ or error}"
        finally:
            self._open.pop(name, None)
            stream.settled.set()
        if name and why:
            self._notify("updates_ended", f"{name}: {why}; listen again, and read again what it covered")


class _Stream:
    """One stream while it is opened.

    Attributes:
        scope: Cancelling it ends the stream.
        settled: Set once the server has agreed or refused.
        agreed: What it has agreed to.
        refused: Why there is no stream.
    """

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.settled = anyio.Event()
        self.agreed: dict[str, Any] = {}
        self.refused: SdkError | None = None

    def agree(self, name: str, honored: types.SubscriptionFilter) -> None:
        notifications = honored.model_dump(by_alias=True, mode="json", exclude_none=True)
        self.agreed = {"subscriptionId": name, "notifications": notifications}
        self.settled.set()

    def refuse(self, error: SdkError) -> None:
        if not self.settled.is_set():
            self.refused = error


def _too_old(version: str | None) -> str:
    return f"{LISTEN} needs the revision 2026-07-28, and this session has {version}: use resources/subscribe"
