"""The asyncio side of the journal: group commit, caches, repositories."""
