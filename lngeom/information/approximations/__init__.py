"""Structured approximations of Fisher matrices: how K-FAC, EKFAC and exact blocks are made, and what they can do."""
