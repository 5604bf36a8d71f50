"""A trained model behind OpenAI's interface: `mosaics serve`."""
