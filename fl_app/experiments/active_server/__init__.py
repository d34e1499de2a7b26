"""A malicious server against the real client mods: the reference attacks, and what they read.

- `attacks`: the attacks, one class each, in the table `ATTACKS`.
- `remaining`: what no check of the clients can stop.
- `images`: images of a batch, by crafted models.
- `federation`: the clients; `perceptron`: what they train.
- `server`: plays rounds over a wire that an attack controls; `transcript`: what it sees.
- `measure`: counts over many rounds; `table`: the experiment.

A new attack subclasses `Attack`, says in `relay` where it departs from the protocol and in `opened`
what it reads, and goes into `ATTACKS`: measurement, table and tests follow.
"""
