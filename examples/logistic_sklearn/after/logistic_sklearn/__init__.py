"""Logistic regression of handwritten digits with scikit-learn."""
