"""Supervised tools as agent frameworks take them: one module for each framework, imported by programs that use it.

Each needs its framework, which no other part of this package does. All of them go through `Toolset.run`: a model's call
is approved, sent, marked and cut as in any host, and a failure is an answer, so that an agent outlives its servers.
"""
