"""Text: the embedded story world, tokenizers and corpora."""
