"""One figure a paper of the gallery, which shows what was found in it: `python -m analysis gallery`."""
