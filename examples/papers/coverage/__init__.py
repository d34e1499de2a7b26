"""How often each lower bound that this project prints is above the truth, where that is known.

- `table`: the experiment `coverage`, all of them on one page.
- `case`: a mechanism with its exact ε, audited many times.
- `canaries`: bounds from one run with canaries, and the bounds as published.
- `trials`: bounds from separate trials, over rounds, over a transcript, of records and of members.
- `streams`: bounds that hold at all rounds together.
- `waiting`: the experiment `anytime-refutes`, how soon such bounds refute a wrong claim.

Published bounds beside them: Andrew et al. (2024), arXiv:2302.03098, section 5, and Ngo et al.
(2024), arXiv:2403.17775, (8).
"""
