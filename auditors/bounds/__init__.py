"""Scores in, bounds out: which epsilon do an attack's scores refute, and how confidently?

Needs numpy and scipy only. An attack scores what it saw in two worlds. In `lower_bound`,
`epsilon_lower_bound` turns the scores into a lower bound, `TradeoffBound` into one for every delta.
For a single run with many canaries, `one_run` has `one_run_epsilon`, which takes guesses,
`coin_bound` and `share_bound`, which take p-values, and `detectable_epsilon`: how much must leak
for such a bound to refute a claim. `AnytimeBound` in `anytime` takes evidence as it arrives, and
holds after every piece of it. Two Gaussians are compared exactly in `gaussian`.
"""
