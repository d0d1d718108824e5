"""Papers on normalization, one module a paper; each is imported when it is asked for (`lngeom papers`)."""

PAPERS: dict[str, str] = {
    "zhang2019": "1910.07467",
    "xu2019": "1911.07013",
    "salimans2016": "1602.07868",
    "vanlaarhoven2017": "1706.05350",
    "santurkar2018": "1805.11604",
    "arora2018": "1812.03981",
    "yang2019": "1902.08129",
    "karakida2019": "1906.02926",
    "xiong2020": "2002.04745",
    "brody2023": "2305.02582",
    "jiang2023": "2305.14858",
    "joudaki2023": "2305.18399",
    "sun2025": "2502.05795",
    "zhu2025": "2503.10622",
    "dong2025": "2505.02809",
    "ziomek2025": "2505.14512",
    "wang2026": "2605.26895",
    "wen2026": "2606.16899",
    "chun2026": "2603.27432",
}
"""Ids of the papers, which are the names of their modules, and their numbers on arXiv; in the order they are listed."""
