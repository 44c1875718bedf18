"""What plugins implement: contracts only. Importing this package never imports torch."""
