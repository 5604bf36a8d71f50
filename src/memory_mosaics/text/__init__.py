"""Text: sources of documents, tokenizers, corpora of token ids, prompts and chat templates."""
