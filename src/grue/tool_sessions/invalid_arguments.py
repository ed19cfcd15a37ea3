"""The error of a call whose arguments do not match, whether msgspec or pydantic reads them."""


class InvalidArgumentsError(Exception):
    """The arguments of a call do not match the parameters; the text is for the model."""
