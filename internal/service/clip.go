package service

import "unicode/utf8"

// maxClipped bounds what Clip leaves, in bytes.
const maxClipped = 256

// Clip cuts a text of a client's to what a line of the log, or an error that
// repeats it, can take: 256 bytes and "…".
func Clip(text string) string {
	if len(text) <= maxClipped {
		return text
	}
	n := maxClipped
	for n > maxClipped-utf8.UTFMax && !utf8.RuneStart(text[n]) { // at the end of a character
		n--
	}
	return text[:n] + "…"
}
