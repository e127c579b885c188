"""The hash of the source of a user's own classes, which enters the id and the record of a run."""
