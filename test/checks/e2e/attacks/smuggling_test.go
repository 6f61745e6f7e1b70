package attacks

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// TestSmuggling: bytes that two servers may read as one request or as two. Each case ends with a request of its own, for
// the path /smuggled, that the sender wants to hide: it is never answered, and no engine gets anything else than what
// whole is. A case is served if the first answer may be 200.
// A folded line is not among them: net/http reads it as RFC 9112, section 5.2, wants it, as a part of the line before.
func TestSmuggling(t *testing.T) {
	const hidden = "GET /smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
	type attack struct {
		name   string
		text   func(head, whole string) string
		served bool
	}
	with := func(framing string) func(head, whole string) string {
		return func(head, whole string) string { return head + framing + "\r\n" + inChunks(whole) + hidden }
	}
	length := func(whole string) string { return "Content-Length: " + strconv.Itoa(len(whole)) + "\r\n" }
	var attacks []attack
	// TE.TE: a coding that one of two servers does not take for chunked.
	for _, line := range []string{
		"Transfer-Encoding: xchunked", "Transfer-Encoding : chunked", "Transfer-Encoding: chunked, identity", "Transfer-Encoding: identity, chunked",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "Transfer-Encoding: \"chunked\"", "Transfer-Encoding: chunked;q=1",
		"Transfer-Encoding:\x0bchunked", "Transfer-Encoding: chunked\x00", "Transfer-Encoding: \x00chunked", "X: x\nTransfer-Encoding: chunked\x0c",
		"Transfer-Encoding\r\n : chunked", "Transfer-Encoding:\r\n chunked", " Transfer-Encoding: chunked", "X: x\nTransfer-Encoding: chunked",
		"Transfer\x00-Encoding: chunked", "Transfer-Encoding: chunked\r", "Transfer-Encoding: c\u0068unked\xff", "Transfer-Encoding: ,chunked", "Transfer-Encoding: gzip, chunked",
		"Transfer-Encoding: ", "Transfer-Encoding: chunked chunked", "\x00Transfer-Encoding: chunked", "Transfer-Encoding\t: chunked",
	} {
		attacks = append(attacks, attack{name: fmt.Sprintf("%q", line), text: func(head, whole string) string {
			return head + length(whole) + line + "\r\n\r\n" + whole + hidden
		}})
	}
	// Lengths that are none, or two.
	for _, value := range []string{
		"-1", "+5", "5,6", "0x5", "5 5", "", "1e1", "18446744073709551621", "9223372036854775808", "5\x00", "٥", "5\r\nContent-Length: 6", "5\nContent-Length: 6", "5\r\n 0", "5;a=b", "05, 5",
	} {
		attacks = append(attacks, attack{name: fmt.Sprintf("length %q", value), text: func(head, whole string) string {
			return head + "Content-Length: " + value + "\r\n\r\n" + whole + hidden
		}})
	}
	// Chunks whose size, extension or end is read in more than one way.
	chunked := func(first string) func(head, whole string) string {
		return func(head, whole string) string {
			return head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf(first, len(whole), whole) + "0\r\n\r\n" + hidden
		}
	}
	for _, first := range []string{
		"0x%x\r\n%s\r\n", "-%x\r\n%s\r\n", "+%x\r\n%s\r\n", " %x\r\n%s\r\n", "%x \x00\r\n%s\r\n", "%x\r%s\r\n", "%x\r\n%sXX", "%[1]x\r\n%[2]s",
		"g%x\r\n%s\r\n", "1000000000000000%x\r\n%s\r\n", "ffffffffffffffff%.0d\r\n%s\r\n", "%x\r\n%s\r\r\n", "\r\n%x\r\n%s\r\n", "%x;a=\x00\r\n%s\r\n\x00", "%x\r\n%s\n\n",
	} {
		attacks = append(attacks, attack{name: fmt.Sprintf("chunk %q", first), text: chunked(first)})
	}
	for _, end := range []string{
		"0\r\nX: y\r\nTransfer-Encoding: chunked\r\n" + hidden, "0\r\n\x00\r\n\r\n" + hidden, "0\r\nbad trailer\r\n\r\n" + hidden, "0\r\n" + strings.Repeat("X: y\r\n", 100_000) + "\r\n" + hidden, "-0\r\n\r\n" + hidden,
	} {
		attacks = append(attacks, attack{name: fmt.Sprintf("end %.40q", end), text: func(head, whole string) string {
			return head + "Transfer-Encoding: chunked\r\n\r\n" + strings.TrimSuffix(inChunks(whole), "0\r\n\r\n") + end
		}})
	}
	attacks = append(attacks,
		attack{name: "lines that end in CR", text: func(head, whole string) string {
			return strings.ReplaceAll(head+length(whole), "\r\n", "\r") + "\r" + whole + hidden
		}},
		attack{name: "fields without a name", text: with(": x\r\nTransfer-Encoding: chunked\r\n")},
		attack{name: "a line without a colon", text: with("Transfer-Encoding\r\n")},
		attack{name: "two hosts", text: with("Host: evil.example\r\nTransfer-Encoding: chunked\r\n")},
		attack{name: "a host with a control character", text: func(head, whole string) string {
			return strings.Replace(head, "Host: 127.0.0.1", "Host: 127.0.0.1\x01", 1) + length(whole) + "\r\n" + whole + hidden
		}},
		attack{name: "no host", text: func(head, whole string) string {
			return strings.Replace(head, "Host: 127.0.0.1\r\n", "", 1) + length(whole) + "\r\n" + whole + hidden
		}},
		attack{name: "another version", text: func(head, whole string) string {
			return strings.Replace(head, "HTTP/1.1", "HTTP/1.2", 1) + "Connection: close\r\n" + length(whole) + "\r\n" + whole + hidden
		}, served: true},
		attack{name: "HTTP/2 in HTTP/1", text: func(head, whole string) string {
			return strings.Replace(head, "HTTP/1.1", "HTTP/2.0", 1) + length(whole) + "\r\n" + whole + hidden
		}},
		attack{name: "no version", text: func(string, string) string { return "GET /health\r\n\r\n" + hidden }},
		attack{name: "NUL in the path", text: func(head, whole string) string {
			return strings.Replace(head, " HTTP/1.1", "\x00 HTTP/1.1", 1) + length(whole) + "\r\n" + whole + hidden
		}},
		attack{name: "a line feed in the path", text: func(head, whole string) string {
			return strings.Replace(head, " HTTP/1.1", "\nX: y HTTP/1.1", 1) + length(whole) + "\r\n" + whole + hidden
		}},
		attack{name: "h2c upgrade", text: func(head, whole string) string {
			return head + "Connection: close, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n" + length(whole) + "\r\n" + whole + hidden
		}, served: true},
		attack{name: "HTTP/1.0 in chunks", text: func(head, whole string) string {
			return strings.Replace(head, "HTTP/1.1", "HTTP/1.0", 1) + "Transfer-Encoding: chunked\r\n\r\n" + inChunks(whole) + hidden
		}, served: true},
		attack{name: "a body of GET", text: func(string, string) string {
			return "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(hidden)) + "\r\n\r\n" + hidden
		}, served: true},
	)
	onFronts(t, func(t *testing.T, f *front) {
		for _, a := range attacks {
			t.Run(a.name, func(t *testing.T) {
				foreign := f.foreign.Load()
				conn := dial(t, f.address, a.text(f.head(), f.body))
				_ = conn.SetReadDeadline(soon())
				in := bufio.NewReader(conn)
				var got []int
				for {
					answer, err := http.ReadResponse(in, nil)
					if err != nil {
						break
					}
					_, _ = io.Copy(io.Discard, answer.Body)
					_ = answer.Body.Close()
					got = append(got, answer.StatusCode)
				}
				if len(got) > 1 || len(got) == 1 && got[0] < http.StatusBadRequest && !a.served {
					t.Errorf("answers %v", got)
				}
				if f.foreign.Load() != foreign {
					t.Error("an engine got what no client meant")
				}
				_ = conn.Close()
			})
		}
	})
}

// inChunks is a body in one chunk.
func inChunks(body string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body) }
