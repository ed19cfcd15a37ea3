"""What these tests share: a model that does as the words say, and lifetimes to be tried without a server."""

from collections.abc import Iterator

import pytest
from fault_turns import Mode
from worded_turns import WordedModel, worded_model


@pytest.fixture
def model() -> Iterator[WordedModel]:
    with worded_model() as model:
        yield model


@pytest.fixture(params=["turn", "episode"])
def mode(request: pytest.FixtureRequest) -> Mode:
    """Those that differ without a server."""
    return request.param  # type: ignore[no-any-return]  # pytest does not know it
