"""The systems that Memory Mosaics are compared with, under the same contract as the memories."""
