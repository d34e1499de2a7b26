"""Each module with a question mark in its first line is a benchmark that answers that question.

A benchmark is a module of this folder: the first line of its docstring is the question, the rest
says how it is measured, and one function answers it:

    def measure(scale: Scale) -> Iterable[Row]: ...

`scale` is "full" (what the question asks), "quick" (seconds: whether it runs; tests take it) or
"long" (shapes of many minutes, asked for by name). `benchmarks.measure.compare` times ours and a
peer in turns and makes their row; `Row` itself takes figures that were interleaved elsewhere, or
ours alone. `benchmarks.memory.grown` measures peak memory. Nothing has to be registered.

    python -m benchmarks              measure all, write docs/BENCHMARKS.md
    python -m benchmarks shamir       measure one and print its rows
"""
