"""What a stranger may hand over as evidence: each class writes one input to a folder, from a seed alone.

`registry` says what an input is; `files` makes single files, dumps and archives, which are also read without a folder
around them; every other module holds the classes of one kind of evidence.
"""

from hostile.inputs import archives, dumps, logs, our_files, settings, trees
from hostile.inputs.registry import CLASSES, NOBODY, Input, input_class

__all__ = ["CLASSES", "NOBODY", "Input", "archives", "dumps", "input_class", "logs", "our_files", "settings", "trees"]
