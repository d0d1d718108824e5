"""Relations that hold for every model, whoever wrote it: hypothesis draws the model, the data and the way in."""
