"""The command line: arguments in, events out, exit codes by stop reason.

It knows how things look on a terminal and in a pipe; what is computed, stored or said is decided in
the packages below. Modules import what needs torch inside the functions that use it, so that
`--help` stays quick.
"""
