"""The arithmetic: pure functions of tensors. Every op has a definition, and faster forms tested against it."""
