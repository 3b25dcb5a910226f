"""Routes signals: commands, live signals, acknowledgements, announcements, responses."""
