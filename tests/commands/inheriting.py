"""A model that inherits everything, also the Config that builds its parent."""

from examples.own_model.model import Starcoder2


class Quiet(Starcoder2):
    """Meant to be another model."""
