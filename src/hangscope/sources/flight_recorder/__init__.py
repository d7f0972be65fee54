"""torch's flight recorder, read out of the memory of a running process: nothing stops, nothing runs in it.

`outside` is the door. `layout` and `known_layouts` say where the fields lie, `containers` how C++ keeps them,
`recorder_memory` reads and proves one recorder, `find_recorders` finds them.
"""
