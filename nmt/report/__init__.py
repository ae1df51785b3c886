"""Pages and figures about runs, and about the attention of a model."""
