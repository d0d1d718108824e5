"""*Layer Normalization* (Ba, Kiros and Hinton 2016, arXiv 1607.06450) as data: transcribed, never computed."""

TITLE = "Layer Normalization"
AUTHORS = ("Jimmy Lei Ba", "Jamie Ryan Kiros", "Geoffrey E. Hinton")
YEAR = 2016
ARXIV = "1607.06450"

TABLE1: dict[str, dict[str, bool]] = {
    "bn": {
        "weight_matrix_rescaling": True,
        "weight_matrix_recentering": False,
        "weight_vector_rescaling": True,
        "dataset_rescaling": True,
        "dataset_recentering": True,
        "single_case_rescaling": False,
    },
    "wn": {
        "weight_matrix_rescaling": True,
        "weight_matrix_recentering": False,
        "weight_vector_rescaling": True,
        "dataset_rescaling": False,
        "dataset_recentering": False,
        "single_case_rescaling": False,
    },
    "ln": {
        "weight_matrix_rescaling": True,
        "weight_matrix_recentering": True,
        "weight_vector_rescaling": False,
        "dataset_rescaling": True,
        "dataset_recentering": False,
        "single_case_rescaling": True,
    },
}
"""Table 1: method, column → "Invariant" (True) or "No" (False)."""
