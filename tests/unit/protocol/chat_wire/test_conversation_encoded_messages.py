"""The messages of a request: joined once, in order, the newest marked ones with their markers."""

from hypothesis import given
from hypothesis import strategies as st

from grue.protocol.chat_wire.conversation import MARK, EncodedMessages

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
