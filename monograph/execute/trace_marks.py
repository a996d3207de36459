"""The names of ranges in traces that are measured here. Loads without torch."""

MARK = "@ "
"""What the name of a module's range begins with: `@ layers.0.attention forward`."""
STEP_MARK = "step"
"""The range that a whole step runs in; in a training run, its number follows."""
ELSEWHERE = "outside of the model"
"""In the place of a module's path."""
