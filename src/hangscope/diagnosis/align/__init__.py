"""The ranks' recordings side by side: the same operation on every member, in whole columns. Nothing here accuses."""
