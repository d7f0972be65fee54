"""The one file that a support ticket needs: what goes into it, made small, redacted, and opened again."""
