// Package identity tells which session a request belongs to, and which session has started that one, from the headers
// that agents and their gateways send, or from the request's body.
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
	Final  bool   // the request is the session's last one, if it has one
	Client string // whose headers say so, for people; "": nobody's
	// Ignored says why names were not used; a session or a parent whose name is ignored is not named.
	Ignored Faults
}

// OfAgent reports whether the session is that of a program which calls tools, by whose headers it has: those of the other
// clients say nothing of that.
func (s *Session) OfAgent() bool {
	switch s.Client {
	case "dynamo", "claude-code", "codex", "deepseek-harness", "opencode", "vllm-router":
		return true
	}
	return false
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
	// Before 0.131 the names had underscores (llm-d-router, plugin agent-identity).
	{"codex", []string{"thread-id", "session-id", "thread_id", "session_id"}, []string{"x-codex-parent-thread-id", "session-id", "session_id"}},
	{"deepseek-harness", []string{"x-deepseek-harness-session-id"}, []string{"x-deepseek-harness-parent-session-id"}},
	// The first is also the generic name. To providers of its own OpenCode sends the second one alone (CLIProxyAPI, #5694).
	{"opencode", []string{"x-session-id", "x-opencode-session"}, []string{"x-parent-session-id"}},
	{"smg", []string{"x-smg-routing-key"}, nil},
	// With a parent it is a sub task of OpenCode before 1.17, which had no other name for its session (opencode, pull requests 20744
	// and 31511).
	{"generic", []string{"x-session-affinity"}, []string{"x-parent-session-id"}},
}

// final marks the last request of a session, whosever headers name that (Dynamo).
const final = "x-dynamo-session-final"

// MaxHeaders is the largest number of headers that a Table may have in front of its own.
const MaxHeaders = 8

// most is the largest number of headers that a Table looks at.
const most = 40

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
	switch strings.ToLower(r.values[0]) { // as Dynamo reads flags
	case "true", "1", "yes", "on":
		s.Final = true
	}
	for i := range r.table.clients {
		c := &r.table.clients[i]
		for _, name := range c.session {
			if !s.name(c.name, r.value(name)) {
				continue
			}
			for _, name := range c.parent {
				if s.startedBy(r.value(name)) {
					break
				}
			}
			return s
		}
	}
	return s
}

// name takes the name that a client has sent, if there is one and it has no fault.
func (s *Session) name(client, id string) bool {
	fault := FaultOf(id)
	s.Ignored |= fault
	if id == "" || fault != 0 {
		return false
	}
	s.ID, s.Client = id, client
	return true
}

// startedBy takes the name of the parent, unless it has a fault. It reports whether there is one: the session is none of itself.
func (s *Session) startedBy(parent string) bool {
	if parent == "" || parent == s.ID {
		return false
	}
	fault := FaultOf(parent)
	if s.Ignored |= fault; fault == 0 {
		s.Parent = parent
	}
	return true
}

// Body has what the body of a request says of its session, without spaces around the names.
type Body struct {
	// Program and Parent are of vllm_xargs.agentic_context: the names of an agent's program, and of the one that has started it.
	// LastOfProgram: the program will send no further request. Source: vllm-router, src/program_scheduling/identity.rs.
	Program, Parent string
	LastOfProgram   bool
	// Session is session_id, and Extra that of vllm_xargs, as which vLLM takes it too (vLLM, pull request 48048).
	Session, Extra string
}

// OrBody returns what the headers say, if they name a session, else what the body says: it is a further client behind theirs.
func (s Session) OrBody(b *Body) Session {
	switch {
	case s.ID != "":
	case s.name("vllm-router", b.Program):
		s.startedBy(b.Parent)
		s.Final = s.Final || b.LastOfProgram
	case s.name("body", b.Session), s.name("body", b.Extra):
	}
	return s
}

func (r *Reader) value(header string) string { return r.values[r.table.slots[header]] }
