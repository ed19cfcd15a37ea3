"""Cut bytes into pieces."""

from collections.abc import Iterator

from hypothesis import strategies as st


def cut(whole: bytes, places: list[int]) -> Iterator[bytes]:
    """Yield `whole` in pieces, cut at `places` (taken modulo its length); some pieces may be empty."""
    at = 0
    for place in sorted(place % (len(whole) + 1) for place in places):
        yield whole[at:place]
        at = place
    yield whole[at:]


PLACES = st.lists(st.integers(0, 10_000), max_size=12)
"""Places to cut at; shrinks towards one piece."""
