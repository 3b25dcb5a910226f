"""Which signal goes where: commands, live channel, acknowledgements, announcements, responses."""
