"""One file a change of the schema, in order. What was released is never changed: a later file changes it further."""
