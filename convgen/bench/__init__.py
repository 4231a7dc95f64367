"""Benchmarks against cuDNN: every contestant verified, then timed in turn in one process, each exactly as the others.

`peers` calls the other libraries, `contest` times whatever it is given, `session` goes through a suite, `results` keeps
what was measured, `report` and `plot` show it. Nothing here imports PyTorch or matplotlib before it is needed.
"""
