"""Applications of the library: they import it, and only the command line imports them."""
