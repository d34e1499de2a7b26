"""The settings of a run: `settings` has their table, `audits` that of the auditors' own.

A setting is a `field`; `config` checks them together and reads them from files.
"""
