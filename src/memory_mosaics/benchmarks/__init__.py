"""How fast: training, decoding, kernels, memory, each against what the machine allows; and where the time goes."""
