"""A client that is asked itself whether its model can call tools."""

from types import SimpleNamespace

import pytest

from grue.config.settings import GameConfiguration
from grue.hosts.zork.client_actor import client_actor
from grue.hosts.zork.look_alikes import asked_of_client

pytestmark = pytest.mark.anyio


class Refusing:
    """Says no, and counts how often."""

    def __init__(self) -> None:
        self.asked = 0
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=lambda **_: None))

    def _supports_tool_calling(self, model: str) -> bool:
        self.asked += 1
        return False


@pytest.mark.parametrize("model", ["gpt-4o", "qwq-32b"])
@pytest.mark.parametrize("forced", [True, False])
async def test_r12_4_forced_the_client_is_not_asked(forced: bool, model: str) -> None:
    client, config = Refusing(), GameConfiguration(mcp_force_tool_support=forced)
    assert client_actor(client, model, config).support_check() == ("skip" if forced else "before")
    checked = await asked_of_client(client, model, config, endpoint="e")
    assert (checked.supported, checked.by) == ((True, "forced") if forced else (False, "client"))
    assert client.asked == (0 if forced else 1)
