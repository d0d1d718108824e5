"""The documentation as web pages that need no network: `python -m analysis site`."""
