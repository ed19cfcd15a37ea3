"""Redirect the log records that the SDK and its HTTP libraries write while they work for grue.

Such a record can hold a secret, or megabytes. So grue drops it, or redacts and cuts it, if it is a warning or
an error. While tokens are obtained or revoked, grue drops all records.
"""

import contextvars
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOGGERS = (  # `client` is the logger of the SDK's session
    "anyio.streams.tls", "client", "httpcore2.connection", "httpcore2.http11", "httpcore2.http2",
    "httpcore2.proxy", "httpcore2.socks", "httpx2", "mcp.client.auth.oauth2", "mcp.client.auth.utils",
    "mcp.client.caching", "mcp.client.client", "mcp.client.sse", "mcp.client.stdio",
    "mcp.client.streamable_http", "mcp.shared.direct_dispatcher", "mcp.shared.dispatcher",
    "mcp.shared.jsonrpc_dispatcher", "mcp.shared.tool_name_validation",
)  # fmt: skip

Receive = Callable[[logging.LogRecord], object]

_receiver = contextvars.ContextVar[Receive | None]("grue_library_logs", default=None)


@contextmanager
def library_logs_to(receive: Receive) -> Iterator[None]:
    """Pass warnings and errors of `LOGGERS` to `receive`, drop lower levels, also in tasks begun inside."""
    before = _receiver.set(receive)
    try:
        yield
    finally:
        _receiver.reset(before)


def drop(record: logging.LogRecord) -> None:
    """Drop a record: records written while tokens are obtained or revoked may hold secrets."""


def _filter(record: logging.LogRecord) -> bool:
    receive = _receiver.get()
    if receive is not None and record.levelno >= logging.WARNING:
        receive(record)
    return receive is None


for _name in LOGGERS:  # not only for parents: a logger's filter does not get the records of its children
    logging.getLogger(_name).addFilter(_filter)
