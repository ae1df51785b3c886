"""Report pages of runs, and pages and figures of a model's attention."""
