"""The folders of training runs: how they are written, and the one reader of them."""
