"""The neural estimator of mutual information as the paper uses it, held to samples it has not seen.

Belghazi et al. 2018 (arXiv:1801.04062), Elkordy et al. 2023. Torch is loaded when critics are
trained, not before.
"""
