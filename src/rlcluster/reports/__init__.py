"""Reports read run directories and write tables, figures and pages; they never train."""
