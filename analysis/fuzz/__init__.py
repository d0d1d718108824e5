"""Generated models, on which every route of `lg.fisher` is compared with a literal Fisher matrix."""
