"""Telling evidence from what merely lies beside it, in a folder that is no incident."""

from __future__ import annotations

_NO_FOLDERS = frozenset((".git", "__pycache__", "node_modules", ".venv", "venv", "lost+found", "wandb"))
_NO_ENDINGS = (
    ".py", ".pyc", ".ipynb", ".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".so", ".o", ".a",  # programs
    ".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".gguf", ".onnx", ".npy", ".npz", ".parquet",  # models, data
    ".arrow", ".distcp", ".idx", ".tfrecord", ".whl", ".deb", ".png", ".jpg", ".gif", ".mp4", ".pdf", ".swp", ".part",
    ".tmp", ".html", ".htm", ".perfetto-trace", ".pftrace",
)  # fmt: skip


def is_evidence(path: str) -> bool:
    """Whether a file of a plain folder may be evidence. Dumps, logs and JSON have any name; models, data, programs and
    hidden folders never are, and may be large or private."""
    *folders, name = path.split("/")
    if any(folder in _NO_FOLDERS or (folder.startswith(".") and folder not in (".cache", "..")) for folder in folders):
        return False
    return not name.lower().endswith(_NO_ENDINGS)
