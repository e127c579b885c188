"""Training: the step of all replicas, the loop over epochs, what a run is while it is trained."""
