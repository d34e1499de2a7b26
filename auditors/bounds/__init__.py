"""Scores in, bounds out: which epsilon do an attack's scores refute, and how confidently?

Needs numpy and scipy only. An attack scores what it saw in two worlds; `epsilon_lower_bound` turns
the scores into a lower bound, `TradeoffBound` into one for every delta. For a single run with many
canaries, `one_run_epsilon` takes guesses, `coin_bound` and `share_bound` take p-values.
`AnytimeBound` takes evidence as it arrives, and holds after every piece of it. `detectable_epsilon`
says beforehand how much must leak for such a bound to refute a claim.
"""
