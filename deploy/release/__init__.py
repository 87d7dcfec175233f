"""A release: packages, images, chart and notes in one folder, with signed checksums, and a signed tag."""
