"""Numbers for people."""


def format_bytes(count: float) -> str:
    """`1.50 GiB`, with three digits that matter."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.{1 if count >= 10 else 2}f} {unit}"


def format_seconds(seconds: float) -> str:
    """`12.3 ms`, with three digits that matter."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
