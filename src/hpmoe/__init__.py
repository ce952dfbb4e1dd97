"""The one import name of the project.

In a checkout this folder holds links to the folders beside it, so that
`hpmoe.reference` means the same to pytest, type checkers, editors and Bazel; an
installed package holds the folders themselves.
"""
