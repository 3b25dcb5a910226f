"""The way out: reply targets, targets with topic filters, outbox, event cursors."""
