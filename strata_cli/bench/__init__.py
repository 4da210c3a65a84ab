"""`strata bench`: workloads as data, one runner, one kind of result.

A reader begins with `workloads` (the list), then `runner` (how a measurement is made) and `result` (what it says).
Each file of trials makes the two sides of a few workloads. Nothing here prints; how results look is `bench_command`.
"""
