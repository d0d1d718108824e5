"""Programs that hold results against a second source: certificates, and the curves of experiments."""
