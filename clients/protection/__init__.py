"""The client's half of noise.

`noise_mod` clips updates and adds noise to them. For noise on single records, `gradients` has the
clipped gradient of each example, and `record_rule` the update rules that use them.
"""
