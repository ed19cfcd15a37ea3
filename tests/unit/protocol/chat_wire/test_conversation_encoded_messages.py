"""The messages of a request: joined once, in order, the newest marked ones with their markers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.protocol.chat_wire.conversation import MARK, EncodedMessages
from grue.runtime.large_data import STEP

MESSAGES = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=3), st.booleans()), max_size=40
)


@given(asks=MESSAGES, room=st.integers(0, 4))
def test_the_messages_stay_in_order_and_only_the_newest_keep_their_markers(
    asks: list[tuple[list[tuple[int, bool]], bool]], room: int
) -> None:
    encoded, plain, marked = EncodedMessages(room), [], []
    for number, (sizes, newest) in enumerate(asks):
        messages = [
            b'{"%d"%s}' % (number, b"x" * size + (MARK if has and room else b"")) for size, has in sizes
        ]
        encoded.add(messages, marked=newest and room > 0)
        with_mark = [at for at, message in enumerate(messages) if MARK in message]
        if newest and with_mark:
            marked.append(len(plain) + with_mark[-1])
        plain += messages
    kept = marked[len(marked) - min(room, len(marked)) :]
    expected = [
        message.replace(MARK, b"") if at in marked and at not in kept else message
        for at, message in enumerate(plain)
    ]
    assert b",".join(encoded.parts) == b",".join(expected)
    assert encoded.size == sum(map(len, plain))


@pytest.mark.parametrize("marked", [True, False])
def test_a_request_joins_a_few_parts_however_many_messages_there_are(marked: bool) -> None:
    encoded = EncodedMessages(3)
    for _ in range(3000):
        encoded.add([b'{"reply":1}', b'{"user":1' + MARK + b"}"], marked=marked)
    assert len(encoded.parts) < 30


def test_long_messages_are_not_copied() -> None:
    encoded, long = EncodedMessages(0), b"x" * STEP
    encoded.add([b"a", long, b"b", b"c"])
    assert encoded.parts == [b"a", long, b"b,c"]
    assert encoded.parts[1] is long
