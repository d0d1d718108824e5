"""What the library says of models, layers and optimizers, measured; a program each."""
