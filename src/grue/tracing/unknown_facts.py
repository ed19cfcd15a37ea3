"""Facts of hosts that are not installed: read as data, shown as data, written back unchanged.

A class is made for each kind and set of fields. To readers it behaves like the
host's own class: it has the kind's name, its tag and its fields.
"""

import contextlib
import functools
import keyword
import re
from typing import Any

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.tracing.facts import EPISODE_FACTS, Fact, subclasses_of

_KIND = re.compile(r"[A-Za-z_][\w.]{0,80}", re.ASCII)
_NAME = re.compile(r"[A-Za-z]\w{0,80}", re.ASCII)
_MOST_KINDS = 1000
"""How many classes are kept. A damaged or hostile file may have more kinds than that."""


class _Tag(Struct):
    type: str = ""


_TAGS = msgspec.json.Decoder(_Tag)


def tag_of(body: bytes) -> str:
    """Return the tag of a message in JSON; empty: it has none.

    Raises:
        msgspec.DecodeError: It is not a JSON object, or its tag is not a text.
    """
    return _TAGS.decode(body).type


def can_be_fact(tag: str) -> bool:
    """Return whether a tag can be the name of a host's fact."""
    return _KIND.fullmatch(tag) is not None


def unknown_fact(body: bytes) -> Fact:
    """Return a fact from JSON, as data.

    Raises:
        msgspec.DecodeError: It is not a JSON object.
    """
    fields: m.JsonObject = msgspec.json.decode(body, type=dict)
    tag = str(fields.pop("type"))
    kind = _class_for(tag, tuple(fields), has_turn=type(fields.get("turn")) is int)
    return kind(**dict(zip(kind.__struct_fields__, fields.values(), strict=True)))


def with_hosts_fields(fact: Fact, body: bytes) -> Fact:
    """Return a fact of an episode's course with the fields that its host has added.

    It becomes the class of a host that is loaded and has declared such fields. Otherwise they are added as
    data.
    """
    if type(fact) not in EPISODE_FACTS:
        return fact
    fields: m.JsonObject = msgspec.json.decode(body, type=dict)
    added = tuple(name for name in fields if name != "type" and name not in fact.__struct_fields__)
    if not added:
        return fact
    for declared in subclasses_of(type(fact)):
        if not set(added).isdisjoint(declared.__struct_fields__):
            with contextlib.suppress(msgspec.ValidationError):  # it is another host's
                return msgspec.json.decode(body, type=declared)
    kind = _class_for(str(fact.__struct_config__.tag), added, type(fact))
    names = kind.__struct_fields__[-len(added) :]
    own = msgspec.structs.asdict(fact)
    return kind(**own, **dict(zip(names, (fields[name] for name in added), strict=True)))


@functools.lru_cache(maxsize=_MOST_KINDS)
def _class_for(
    tag: str, fields: tuple[str, ...], base: type[Fact] = Fact, *, has_turn: bool = False
) -> type[Fact]:
    # Readers expect a turn to be a number.
    usable = [name for name in fields if _usable(name, base) and (name != "turn" or has_turn)]
    names = {name: name if name in usable else f"field_{number}" for number, name in enumerate(fields)}
    try:
        kind: Any = msgspec.defstruct(
            tag,
            [(python_name, object) for python_name in names.values()],
            bases=(base,),
            frozen=True,
            kw_only=True,
            tag=tag,
            rename={python_name: name for name, python_name in names.items() if python_name != name},
        )
    except ValueError as error:
        # Quotes, backslashes and control characters cannot be in the name of a field.
        raise msgspec.ValidationError(f"a field has no usable name: {error}") from error
    return kind  # type: ignore[no-any-return]


def _usable(name: str, base: type[Fact]) -> bool:
    # A field must not replace an attribute that readers use, such as `summary`.
    plain = _NAME.fullmatch(name) is not None and not keyword.iskeyword(name)
    return plain and not name.startswith(("_", "field_")) and not hasattr(base, name)
