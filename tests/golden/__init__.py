"""Small runs whose numbers no refactoring may change."""
