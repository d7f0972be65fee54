"""The node agent: watches this node's ranks, notices a stall, has the evidence saved and the hang diagnosed."""
