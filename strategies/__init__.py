"""What runs on the server: choice of clients, secure sums, noise."""

from strategies.chosen import Chosen
from strategies.grid import PatientGrid
from strategies.masked import Masked
from strategies.noised import Noised
from strategies.participation import FixedSize, Participation

__all__ = ["Chosen", "FixedSize", "Masked", "Noised", "Participation", "PatientGrid"]
