"""One run on disk: its status, log, checkpoints and summary, as its writer and its readers see them."""
