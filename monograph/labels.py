"""Labels that mean something to every part of the program. Loads without torch."""

IGNORED_LABEL = -100
"""Where nothing is to be predicted."""
