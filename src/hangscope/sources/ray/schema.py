"""Saved as ray/cluster.json (of the cluster) and nodes/<host>/ray/processes.json."""

FOLDER = "ray"
KIND = "other"
CLUSTER_SCHEMAS = "hangscope.ray/"
NODE_SCHEMAS = "hangscope.ray-node/"
NODE_SCHEMA = f"{NODE_SCHEMAS}1"
