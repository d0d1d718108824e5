"""Papers on normalization after 2016, one module a paper; each is imported when it is asked for (`lngeom papers`)."""

PAPERS: dict[str, str] = {
    "zhang2019": "1910.07467",
    "yang2019": "1902.08129",
    "karakida2019": "1906.02926",
    "xiong2020": "2002.04745",
    "brody2023": "2305.02582",
    "jiang2023": "2305.14858",
    "ziomek2025": "2505.14512",
}
"""Ids of the papers, which are the names of their modules, and their numbers on arXiv; in the order they are listed."""
