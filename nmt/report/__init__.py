"""What people would rather look at than read: pages and figures about runs, and about what a model attends to."""
