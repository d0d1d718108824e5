"""Papers on normalization after 2016, one module a paper; each is imported when it is asked for (`lngeom papers`)."""

PAPERS: dict[str, str] = {
    "zhang2019": "1910.07467",
    "joudaki2023": "2305.18399",
    "sun2025": "2502.05795",
    "zhu2025": "2503.10622",
    "wang2026": "2605.26895",
    "chun2026": "2603.27432",
}
"""Ids of the papers, which are the names of their modules, and their numbers on arXiv; in the order they are listed."""
