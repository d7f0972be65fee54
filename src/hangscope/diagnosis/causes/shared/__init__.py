"""What several causes use: their words, and what they find out together. No cause lives here."""
