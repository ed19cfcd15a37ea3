"""How many streams a session has at most."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

from mcp.client.session import ClientSession

from grue.transports.mcp import sdk
from grue.transports.mcp.sdk import MAX_STREAMS, SdkError, Subscriptions


@asynccontextmanager
async def never_agreed(*_: Any, **__: Any) -> AsyncIterator[None]:
    await anyio.sleep_forever()
    yield


def test_streams_that_are_being_opened_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk, "listen", never_agreed)

    async def open_all() -> None:
        streams = Subscriptions(cast("ClientSession", None), lambda *_: None)
        async with streams, anyio.create_task_group() as tasks:
            for _ in range(MAX_STREAMS):
                tasks.start_soon(streams.listen, {})
            await anyio.lowlevel.checkpoint()
            with anyio.fail_after(60), pytest.raises(SdkError, match="which is the most"):
                await streams.listen({})
            tasks.cancel_scope.cancel()

    anyio.run(open_all)
