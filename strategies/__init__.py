"""What runs on the server: choice of clients, secure sums, noise and its accounting."""

from strategies.chosen import Chosen
from strategies.filled import Filled
from strategies.grid import PatientGrid
from strategies.masked import Masked
from strategies.mechanism import AdaptiveClip, Central, Distributed, FixedClip, Local
from strategies.noised import Noised
from strategies.participation import EachOnce, FixedSize, Participation, Poisson, ShuffledEpochs

__all__ = [
    "AdaptiveClip",
    "Central",
    "Chosen",
    "Distributed",
    "EachOnce",
    "Filled",
    "FixedClip",
    "FixedSize",
    "Local",
    "Masked",
    "Noised",
    "Participation",
    "PatientGrid",
    "Poisson",
    "ShuffledEpochs",
]
