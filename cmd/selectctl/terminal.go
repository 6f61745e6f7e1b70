package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
)

// Texts of services, engines and callers are not trusted: a terminal would obey their control characters, and
// text that runs backwards or takes no room shows something else than it is. So whatever is written passes
// printable, as a part of a line for people, or writeEscaped, as JSON or YAML.

// isShown reports whether a terminal shows a character, and nothing but shows it: not the control characters
// (C0, DEL, C1), those that set the direction of text, separators but the space, and those without width or
// meaning.
func isShown(r rune) bool {
	if r < 0x7f {
		return r >= ' '
	}
	return unicode.IsPrint(r) && !unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// printable returns a text as a part of one line: line breaks become spaces, and other characters that are
// not shown become U+FFFD.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case isShown(r):
			return r
		case r == '\n':
			return ' '
		}
		return unicode.ReplacementChar
	}, text)
}

// line writes a line for people.
func (a *app) line(format string, args ...any) {
	fmt.Fprintln(a.out, printable(fmt.Sprintf(format, args...)))
}

// writeEscaped copies a text of JSON or YAML with the characters that are not shown as escape sequences of
// quoted texts, which mean the same. Tabs and carriage returns can only stand between tokens, as white space.
func writeEscaped(out io.Writer, in io.Reader, escape func(rune) string) error {
	from, to := bufio.NewReaderSize(in, 64<<10), bufio.NewWriterSize(out, 64<<10)
	for {
		r, _, err := from.ReadRune() // bytes that are no UTF-8 are U+FFFD
		switch {
		case errors.Is(err, io.EOF):
			return to.Flush()
		case err != nil:
			_ = to.Flush() // what has come is shown, the other error is told
			return err     //nolint:wrapcheck // it is the service's
		case r == '\n' || isShown(r):
			_, _ = to.WriteRune(r) // Flush has the error
		case r == '\t' || r == '\r':
			_ = to.WriteByte(' ')
		default:
			_, _ = to.WriteString(escape(r))
		}
	}
}

// escapeJSON returns a character's escape sequence in JSON, a surrogate pair above U+FFFF.
func escapeJSON(r rune) string {
	if high, low := utf16.EncodeRune(r); high != unicode.ReplacementChar {
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// escapeYAML returns a character's escape sequence in a double-quoted text of YAML.
func escapeYAML(r rune) string { return fmt.Sprintf(`\U%08X`, r) }
