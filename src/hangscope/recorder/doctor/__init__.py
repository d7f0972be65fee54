"""What would happen here if a collective hung now, as findings. Nothing is changed.

`examine` looks at the settings, `examine_node` at the machine.
"""
