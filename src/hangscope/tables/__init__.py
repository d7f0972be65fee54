"""Orders, indexes and joins over all operations of a job, in whole columns: what rules look things up in. They judge
nothing, and cost no more than a few steps an operation.
"""
