// Package redact leaves credentials out of texts that are shown: configurations, errors and log lines.
package redact

import "strings"

// hidden stands for what is left out.
const hidden = "xxxxx"

// URLs returns a text without the credentials of the URLs in it: what stands between // and @ becomes xxxxx, also a
// name alone, since NATS and others take a token there. A URL ends at white space or a quote.
func URLs(text string) string {
	var b strings.Builder
	for {
		begin := strings.Index(text, "//")
		if begin < 0 {
			break
		}
		begin += len("//")
		b.WriteString(text[:begin])
		text = text[begin:]
		if n := userinfo(text); n > 0 {
			b.WriteString(hidden)
			text = text[n:]
		}
	}
	b.WriteString(text)
	return b.String()
}

// userinfo returns how long the credentials are at the beginning of what follows the // of a URL, 0 if it has
// none.
func userinfo(rest string) int {
	if end := strings.IndexAny(rest, " \t\r\n\"'`"); end >= 0 {
		rest = rest[:end]
	}
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		return at
	}
	// A password that should have been escaped: what looks like a port is none.
	_, port, isPort := strings.Cut(authority, ":")
	if !isPort || strings.Trim(port, "0123456789") == "" || strings.HasPrefix(authority, "[") {
		return 0
	}
	return max(0, strings.LastIndexByte(rest, '@'))
}
