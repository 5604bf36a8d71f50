"""Tasks, one file each: what a model is trained on and measured by."""
