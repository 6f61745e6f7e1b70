// Package identity tells which session a request belongs to, and which session has started that one, from the headers
// that agents and their gateways send.
//
// Each client has headers of its own. The first client in the order of the table of whose headers one names a session
// says everything: headers of different clients are never mixed, since a gateway's name for a session is not that of the
// agent behind it. The order and the rules are those of Dynamo (docs/agents/session-ids.md), with the clients that it
// does not know behind its own.
package identity

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Session is what a request says of its session.
type Session struct {
	ID     string // "": none
	Parent string // the session that has started it, as an agent starts its sub-agents; "": none, or it is not said
	Final  bool   // the request is the session's last one
	Client string // whose headers say so, for people; "": nobody's
	// Ignored says why names were not used; a session or a parent whose name is ignored is not named.
	Ignored Faults
}

// client is a row of the table. Of each list the first header that is not empty counts.
type client struct {
	name    string
	session []string
	parent  []string // what names the session itself is no parent
}

// clients are in the order in which they count.
var clients = []client{
	{"dynamo", []string{"x-dynamo-session-id"}, []string{"x-dynamo-parent-session-id"}},
	// Claude Code sends the session's header from sub-agents too: the agent's goes first. A parent alone, or an empty agent, is
	// that of a root.
	{"claude-code", []string{"x-claude-code-agent-id"}, []string{"x-claude-code-parent-agent-id", "x-claude-code-session-id"}},
	{"claude-code", []string{"x-claude-code-session-id"}, nil},
	// A thread of Codex is a conversation; of a thread that another one has started, session-id is that of the first one.
	{"codex", []string{"thread-id", "session-id"}, []string{"x-codex-parent-thread-id", "session-id"}},
	{"opencode", []string{"x-session-id"}, []string{"x-parent-session-id"}}, // the first is also the generic name
	{"smg", []string{"x-smg-routing-key"}, nil},
	{"generic", []string{"x-session-affinity"}, nil},
}

// final marks the last request of a session, whosever headers name that (Dynamo).
const final = "x-dynamo-session-final"

// MaxHeaders is the largest number of headers that a Table may have in front of its own.
const MaxHeaders = 8

// most is the largest number of headers that a Table looks at.
const most = 32

// Table knows the headers of clients. It does not change.
type Table struct {
	clients []client
	slots   map[string]uint8 // by header: its place in Reader.values
}

// New returns the table of known clients behind further ones: each is the name of the session's header, NAME, or with that
// of its parent, NAME/PARENT. The error says which is none.
func New(first ...string) (*Table, error) {
	if len(first) > MaxHeaders {
		return nil, fmt.Errorf("%d headers of sessions; at most %d", len(first), MaxHeaders)
	}
	t := &Table{slots: map[string]uint8{final: 0}}
	for _, text := range first {
		name, parent, has := strings.Cut(strings.ToLower(text), "/")
		if !httpguts.ValidHeaderFieldName(name) || has && !httpguts.ValidHeaderFieldName(parent) {
			return nil, fmt.Errorf("%q is no header's name, nor NAME/PARENT", text)
		}
		c := client{name: "configured", session: []string{name}}
		if has {
			c.parent = []string{parent}
		}
		t.clients = append(t.clients, c)
	}
	t.clients = append(t.clients, clients...)
	for _, c := range t.clients {
		for _, name := range slices.Concat(c.session, c.parent) {
			if _, known := t.slots[name]; !known {
				t.slots[name] = uint8(len(t.slots))
			}
		}
	}
	return t, nil
}

// Reader reads the headers of one request.
type Reader struct {
	table  *Table
	values [most]string
}

// Reader returns a reader of no header yet.
func (t *Table) Reader() Reader { return Reader{table: t} }

// Read takes a header; name is in lower case. Of several with the same name the first one that is not empty counts. A value is
// one name, whatever commas it has.
func (r *Reader) Read(name, value string) {
	if slot, known := r.table.slots[name]; known && r.values[slot] == "" {
		r.values[slot] = strings.TrimSpace(value)
	}
}

// Session returns what the headers say. The name of a session that has a fault is as if it were not sent. Of a parent whose name
// has one nothing is known: no other header stands for it.
func (r *Reader) Session() (s Session) {
	for i := range r.table.clients {
		c := &r.table.clients[i]
		for _, name := range c.session {
			id := r.value(name)
			if fault := FaultOf(id); fault != 0 {
				s.Ignored |= fault
			} else if id != "" {
				s.ID, s.Client = id, c.name
				s.setParent(r, c.parent)
				s.Final = strings.EqualFold(r.values[0], "true")
				return s
			}
		}
	}
	return s
}

// setParent sets the parent to what the first header that names another session says.
func (s *Session) setParent(r *Reader, headers []string) {
	for _, name := range headers {
		if parent := r.value(name); parent != "" && parent != s.ID {
			if fault := FaultOf(parent); fault != 0 {
				s.Ignored |= fault
			} else {
				s.Parent = parent
			}
			return
		}
	}
}

func (r *Reader) value(header string) string { return r.values[r.table.slots[header]] }
