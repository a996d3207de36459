"""Name a region of model code, so that the ops inside can be found in the captured graph, forward and backward.

    with annotate("dispatch"):
        rows = ...

Outside of a capture it costs next to nothing. Regions may nest; the innermost name wins.
"""

from contextlib import AbstractContextManager

from monograph.compat import annotate_nodes

REGION = "region"
"""The key of the annotation on a captured node."""


def annotate(region: str) -> AbstractContextManager[None]:
    """Mark the ops run inside as belonging to `region`; use it in your own modules like ours do."""
    return annotate_nodes({REGION: region})
