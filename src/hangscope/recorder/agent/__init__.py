"""The node's agent: watches its ranks, has a hang captured and diagnosed, notices a recovery, reports its status.

`node_agent` is the loop; the other modules do what they are named after, and none of them knows the loop.
"""
