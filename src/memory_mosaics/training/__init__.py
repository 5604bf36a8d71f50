"""Training: configuration, the training loop, checkpoints to resume from, and logs."""
