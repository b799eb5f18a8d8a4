"""Reports read run directories and write tables, pictures and pages; they never train."""
