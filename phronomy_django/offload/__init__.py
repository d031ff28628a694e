"""Pool backends beyond threads."""
