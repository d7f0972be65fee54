"""Log files: text in, what each line says out. Which rank wrote a line is resolved later, in `join/`.

`log_file` reads a file's lines (`log_lines`, `unwrap`, `line_prefixes`, `line_writers`) and gives each to the readers
of PyTorch's, NCCL's, launchers', frameworks' and the kernel's messages, of errors (`failure_line`) and of tracebacks.
"""
