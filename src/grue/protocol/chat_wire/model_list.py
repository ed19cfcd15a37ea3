"""Read the model list of an endpoint, `GET {base_url}/models`."""

from msgspec import Struct

from grue.protocol.chat_wire.reply import as_object, listed
from grue.protocol.json_text import from_json


class ListedModel(Struct, frozen=True):
    """An entry of an endpoint's model list.

    Attributes:
        name: The model's name.
        parameters: The request parameters that the model accepts, in OpenRouter's terms; `None` if not
            listed.
        inputs: Its kinds of input besides text (`image`, `audio`, `file`); `None` if not listed.
    """

    name: str
    parameters: frozenset[str] | None = None
    inputs: frozenset[str] | None = None

    @property
    def takes_tools(self) -> bool | None:
        """Whether the model can call tools; `None` if the list does not say."""
        return None if self.parameters is None else "tools" in self.parameters


def read_models(body: bytes) -> dict[str, ListedModel] | None:
    """Return the models of a list by name, or `None` if the body is not a list of models."""
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
    """Return the entry for a model; a variant (`vendor/name:nitro`) uses the entry without the suffix."""
    return models.get(model) or models.get(model.rpartition(":")[0])
