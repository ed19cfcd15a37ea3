"""Judge whether a reply has the shape of the schema that its request was sent with.

Some endpoints accept a schema and ignore it; the model then does not know what shape is wanted. A first reply
of another shape shows that. This is a quick check; the host's own check decides about the answer.
"""

from itertools import islice

from grue import messages as m
from grue.protocol.answers import json_objects

_MAX_CHARS = 100_000
_MOST_OBJECTS = 5


def has_shape(schema: m.JsonObject, content: str) -> bool:
    """Return whether a text holds a JSON object with the schema's required members.

    If none is required, it has to have any of the schema's members.

    Args:
        schema: The schema of the answer. Only one of an object is judged.
        content: The text of the reply. A very long one is not judged.
    """
    if schema.get("type") != "object" or len(content) > _MAX_CHARS:
        return True
    properties, required = schema.get("properties"), schema.get("required")
    wanted = set(required) if isinstance(required, list) else set()
    known = set(properties) if isinstance(properties, dict) else set()
    return any(
        wanted <= found.keys() and (bool(wanted) or not known or not known.isdisjoint(found))
        for found in islice(json_objects(content), _MOST_OBJECTS)
    )
