"""BabiStories: a corpus of tiny stories asked from a language model, as in the paper's appendix B."""
