package servicetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Log collects what a service logs: all of it in JSON lines.
type Log struct {
	mu    sync.Mutex
	lines []string
}

// Write implements io.Writer.
func (l *Log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(line))
	return len(line), nil
}

// Take returns the lines since the last call, as "warn: message field=value …"
// with the fields in the order of their names.
func (l *Log) Take(t testing.TB) []string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, line := range l.lines {
		var fields map[string]any
		d := json.NewDecoder(strings.NewReader(line))
		d.UseNumber()
		if err := d.Decode(&fields); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		text := fmt.Sprintf("%v: %v", fields["level"], fields["message"])
		delete(fields, "level")
		delete(fields, "message")
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			text += fmt.Sprintf(" %s=%v", name, fields[name])
		}
		out = append(out, text)
	}
	l.lines = nil
	return out
}
