"""Time and memory against other libraries."""
