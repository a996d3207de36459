"""How high the site's search ranks a page: guides answer questions, decisions and results are where answers come from.

The search counts a word in a title a thousand times. Among forty decisions some title has nearly every word, and would
stand above the guide that explains it. With these factors a title there counts like a mention in a guide.
"""

OTHERS = 1000.0
BOOSTS = {"guides/": 2 * OTHERS, "decisions/": 1.0, "results/": 0.5, "source/": 0.2}
"""Folder of the site -> factor on the score of its pages. None is small: scores are rounded to three decimals."""


def find_boost(path: str) -> float:
    """The factor for a page, by its path on the site."""
    return next((boost for folder, boost in BOOSTS.items() if path.startswith(folder)), OTHERS)
