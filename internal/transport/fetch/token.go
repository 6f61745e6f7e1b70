package fetch

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/select-service/select-service/internal/transport/filewatch"
)

// maxToken is the longest token in bytes.
const maxToken = 4096

// Token is a bearer token that this process presents: the single line of a
// file, which may be replaced at any time. It is never logged. It is safe for concurrent use.
type Token struct {
	watcher *filewatch.Watcher
	current atomic.Pointer[string]
}

// LoadToken reads the file at path; for an empty path it returns nil. what is its name in errors
// and in the log.
func LoadToken(what, path string) (*Token, error) {
	if path == "" {
		return nil, nil
	}
	t := &Token{}
	var err error
	t.watcher, err = filewatch.Load(what, []string{path}, func(contents [][]byte) error {
		text := strings.TrimSpace(string(contents[0]))
		if err := checkToken(text); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		t.current.Store(&text)
		return nil
	})
	return t, err
}

// checkToken returns why a text cannot be sent as a token. The error does not quote the text.
func checkToken(text string) error {
	if text == "" || len(text) > maxToken {
		return fmt.Errorf("want a token of 1 to %d bytes, have %d", maxToken, len(text))
	}
	if strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0 {
		return errors.New("want one line of visible ASCII characters without spaces")
	}
	return nil
}

// Watcher follows the file; it has to be run. It is nil for a nil Token.
func (t *Token) Watcher() *filewatch.Watcher {
	if t == nil {
		return nil
	}
	return t.watcher
}

// Text returns the token.
func (t *Token) Text() string { return *t.current.Load() }
