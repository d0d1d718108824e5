"""Structured approximations of Fisher matrices: K-FAC, EKFAC and exact blocks, with a measured error."""
