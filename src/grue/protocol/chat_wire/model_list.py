"""What an endpoint's `GET {base_url}/models` says of a model."""

from msgspec import Struct

from grue.protocol.chat_wire.json_text import from_json
from grue.protocol.chat_wire.reply import as_object, listed


class ListedModel(Struct, frozen=True):
    """A model as its endpoint lists it.

    Attributes:
        parameters: What its requests may have, as OpenRouter says it; `None` where the list does not say.
        inputs: What it takes beside text (`image`, `audio`, `file`); `None` where the list does not say.
    """

    name: str
    parameters: frozenset[str] | None = None
    inputs: frozenset[str] | None = None

    @property
    def takes_tools(self) -> bool | None:
        """Whether it can be offered tools; `None` where the list does not say."""
        return None if self.parameters is None else "tools" in self.parameters

    @property
    def takes_schemas(self) -> bool | None:
        """Whether it can be held to a schema; `None` where the list does not say."""
        return None if self.parameters is None else "structured_outputs" in self.parameters


def read_models(body: bytes) -> dict[str, ListedModel] | None:
    """Return the models of a list by name, or `None` for a body that is no list of models."""
    try:
        answer = as_object(from_json(body))
    except (ValueError, MemoryError):
        return None
    if not isinstance(answer.get("data"), list):
        return None
    models: dict[str, ListedModel] = {}
    for entry in map(as_object, listed(answer["data"])):
        name, given = entry.get("id"), entry.get("supported_parameters")
        inputs = as_object(entry.get("architecture")).get("input_modalities")
        if isinstance(name, str):
            models[name] = ListedModel(name, _names(given), _names(inputs))
    return models


def _names(given: object) -> frozenset[str] | None:
    return frozenset(map(str, given)) if isinstance(given, list) else None


def find_model(models: dict[str, ListedModel], model: str) -> ListedModel | None:
    """Return the list's entry for a model; a variant (`vendor/name:nitro`) is as good as what it varies."""
    return models.get(model) or models.get(model.rpartition(":")[0])
