"""The verbs of the command line, one module a verb or group of verbs.

A module imports at its top only what `qtandem --help` needs; the rest is imported by the verb that uses it.
"""
