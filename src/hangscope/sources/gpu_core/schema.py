"""Saved as nodes/<host>/gpu/rank_<r>.json: which kernels ran on a rank's GPU, of a core that is not kept."""

FOLDER = "gpu"
KIND = "gpu"
SCHEMAS = "hangscope.gpu/"
SCHEMA = f"{SCHEMAS}1"
