"""Log files: text in, what each line says out. Who wrote a line is settled later, in `join/`."""
