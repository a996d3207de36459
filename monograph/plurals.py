"""Counts with their nouns, as they are printed. Loads without torch."""


def counted(count: float, noun: str, plural: str = "") -> str:
    """`1 node`, `1,024 nodes`; the plural of a noun that does not take an s is given."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
