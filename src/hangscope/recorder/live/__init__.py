"""What the ranks of this node are doing right now: asked through their companion, or seen from outside.

`polling` finds them and asks them in turn; `companion/` is what runs inside each of them.
"""
