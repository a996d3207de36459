"""monograph: the whole training step as one graph."""

__version__ = "0.1.0"
