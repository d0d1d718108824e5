"""The effective learning rate of normalized networks, measured."""
