// Package filewatch follows small files that are replaced while the service runs:
// certificates and tokens. It polls, so that it works on any file system and with any
// way of replacing a file, also by a symbolic link above it.
package filewatch
