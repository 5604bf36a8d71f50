"""Training: recipes, processes, the state that a run goes on from, and the loop."""
