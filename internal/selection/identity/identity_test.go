package identity_test

import (
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/test/helpers/agents"
)

// read returns what headers, name and value in turn, say.
func read(t testing.TB, first []string, headers ...string) identity.Session {
	t.Helper()
	table, err := identity.New(first...)
	if err != nil {
		t.Fatal(err)
	}
	r := table.Reader()
	for i := 0; i < len(headers); i += 2 {
		r.Read(headers[i], headers[i+1])
	}
	return r.Session()
}

// TestRequests plays requests of real clients, and of public sources.
func TestRequests(t *testing.T) {
	for _, r := range agents.Requests(t) {
		t.Run(r.Name, func(t *testing.T) {
			fields := r.Fields()
			for i := 0; i < len(fields); i += 2 {
				fields[i] = strings.ToLower(fields[i]) // as HTTP/2 and the fronts have it
			}
			want := identity.Session{ID: r.Session, Parent: r.Parent, Client: r.Client, Final: r.Final}
			if got := read(t, nil, fields...); got != want {
				t.Errorf("%+v, want %+v (%s)", got, want, r.Source)
			}
		})
	}
}

// TestClients has headers as clients send them, and what they mean. Sources: Dynamo, docs/agents/session-ids.md (its own names,
// Claude Code, Codex, OpenCode); SMG's documentation of consistent hashing (X-SMG-Routing-Key); OpenCode and Fireworks
// (x-session-affinity).
func TestClients(t *testing.T) {
	type session = identity.Session
	long := strings.Repeat("s", identity.MaxName+1)
	for name, tt := range map[string]struct {
		headers []string
		want    session
	}{
		"none":   {[]string{"user-agent", "curl/8"}, session{}},
		"dynamo": {[]string{"x-dynamo-session-id", "a"}, session{ID: "a", Client: "dynamo"}},
		"dynamo, child and last": {
			[]string{"x-dynamo-session-id", "a", "x-dynamo-parent-session-id", "p", "x-dynamo-session-final", "true"},
			session{ID: "a", Parent: "p", Final: true, Client: "dynamo"},
		},
		"dynamo before an agent's own": {
			[]string{"x-claude-code-session-id", "s", "x-claude-code-agent-id", "c", "x-dynamo-session-id", "a"}, session{ID: "a", Client: "dynamo"},
		},
		"last, of an agent":       {[]string{"x-session-id", "s", "x-dynamo-session-final", "TRUE"}, session{ID: "s", Final: true, Client: "opencode"}},
		"last, as a number":       {[]string{"x-session-id", "s", "x-dynamo-session-final", "1"}, session{ID: "s", Final: true, Client: "opencode"}},
		"last, of nobody":         {[]string{"x-dynamo-session-final", "true"}, session{Final: true}},
		"not the last":            {[]string{"x-session-id", "s", "x-dynamo-session-final", "false"}, session{ID: "s", Client: "opencode"}},
		"a parent alone":          {[]string{"x-dynamo-parent-session-id", "p"}, session{}},
		"an empty name, then one": {[]string{"x-dynamo-session-id", " ", "x-session-id", " s "}, session{ID: "s", Client: "opencode"}},

		"claude code, root":  {[]string{"x-claude-code-session-id", "s"}, session{ID: "s", Client: "claude-code"}},
		"claude code, child": {[]string{"x-claude-code-session-id", "s", "x-claude-code-agent-id", "c"}, session{ID: "c", Parent: "s", Client: "claude-code"}},
		"claude code, child of a child": {
			[]string{"x-claude-code-agent-id", "d", "x-claude-code-session-id", "s", "x-claude-code-parent-agent-id", "c"},
			session{ID: "d", Parent: "c", Client: "claude-code"},
		},
		"claude code, empty agent":    {[]string{"x-claude-code-session-id", "s", "x-claude-code-agent-id", ""}, session{ID: "s", Client: "claude-code"}},
		"claude code, a parent alone": {[]string{"x-claude-code-session-id", "s", "x-claude-code-parent-agent-id", "c"}, session{ID: "s", Client: "claude-code"}},

		"codex, root":       {[]string{"thread-id", "t", "session-id", "t"}, session{ID: "t", Client: "codex"}},
		"codex, child":      {[]string{"thread-id", "u", "session-id", "t"}, session{ID: "u", Parent: "t", Client: "codex"}},
		"codex, named":      {[]string{"thread-id", "v", "session-id", "t", "x-codex-parent-thread-id", "u"}, session{ID: "v", Parent: "u", Client: "codex"}},
		"codex, older":      {[]string{"session-id", "t"}, session{ID: "t", Client: "codex"}},
		"codex, own parent": {[]string{"thread-id", "t", "x-codex-parent-thread-id", "t"}, session{ID: "t", Client: "codex"}},

		"opencode": {[]string{"x-session-id", "s", "x-parent-session-id", "p"}, session{ID: "s", Parent: "p", Client: "opencode"}},
		"smg":      {[]string{"x-smg-routing-key", "k"}, session{ID: "k", Client: "smg"}},
		"affinity": {[]string{"x-session-affinity", "k"}, session{ID: "k", Client: "generic"}},
		"affinity of a child": {
			[]string{"x-session-affinity", "k", "x-parent-session-id", "p"}, session{ID: "k", Parent: "p", Client: "generic"},
		},
		"affinity beside another client's name": {
			[]string{"x-session-affinity", "k", "x-parent-session-id", "p", "x-smg-routing-key", "r"}, session{ID: "r", Client: "smg"},
		},
		"clients do not mix": {[]string{"x-session-id", "s", "x-dynamo-parent-session-id", "p", "x-codex-parent-thread-id", "u"}, session{ID: "s", Client: "opencode"}},

		"several values":      {[]string{"x-session-id", "", "x-session-id", " ", "x-session-id", "s", "x-session-id", "t"}, session{ID: "s", Client: "opencode"}},
		"a list is one name":  {[]string{"x-session-id", "s, t"}, session{ID: "s, t", Client: "opencode"}},
		"as long as may be":   {[]string{"x-session-id", long[1:]}, session{ID: long[1:], Client: "opencode"}},
		"too long":            {[]string{"x-session-id", long}, session{Ignored: identity.TooLong}},
		"too long, then one":  {[]string{"thread-id", long, "session-id", "t"}, session{ID: "t", Client: "codex", Ignored: identity.TooLong}},
		"a control character": {[]string{"x-session-id", "a\tb", "x-session-affinity", "a\x7f"}, session{Ignored: identity.Control}},
		"a parent that is too long stands for itself": {
			[]string{"thread-id", "u", "session-id", "t", "x-codex-parent-thread-id", long}, session{ID: "u", Client: "codex", Ignored: identity.TooLong},
		},

		"the service's own names":       {[]string{"x-dynamo-session-id", "\x01sg:x", "x-session-id", "\x02y"}, session{Ignored: identity.Reserved}},
		"the service's own as a parent": {[]string{"x-dynamo-session-id", "a", "x-dynamo-parent-session-id", "\x01sg:x"}, session{ID: "a", Client: "dynamo", Ignored: identity.Reserved}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := read(t, nil, tt.headers...); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestOfAgent: the sessions of programs that call tools are those of the clients that are such, whatever names them.
func TestOfAgent(t *testing.T) {
	for _, tt := range []struct {
		header string
		is     bool
	}{
		{"x-dynamo-session-id", true},
		{"x-claude-code-session-id", true},
		{"thread-id", true},
		{"x-deepseek-harness-session-id", true},
		{"x-session-id", true},
		{"x-smg-routing-key", false},
		{"x-session-affinity", false},
	} {
		s := read(t, nil, tt.header, "s")
		if s.OfAgent() != tt.is {
			t.Errorf("%s: of an agent: %t", tt.header, s.OfAgent())
		}
	}
	for _, tt := range []struct {
		body identity.Body
		is   bool
	}{{identity.Body{Program: "p"}, true}, {identity.Body{Session: "s"}, false}} {
		s := identity.Session{}.OrBody(&tt.body)
		if s.OfAgent() != tt.is {
			t.Errorf("%+v: of an agent: %t", tt.body, s.OfAgent())
		}
	}
}

// TestConfigured proves that headers of one's own go before all clients', and what is no header.
func TestConfigured(t *testing.T) {
	first := []string{"X-Chat", "x-job/X-Job-Parent"}
	for _, tt := range []struct {
		headers string
		want    identity.Session
	}{
		{"x-chat=c x-dynamo-session-id=a", identity.Session{ID: "c", Client: "configured"}},
		{"x-job=j x-job-parent=p x-dynamo-parent-session-id=q", identity.Session{ID: "j", Parent: "p", Client: "configured"}},
		{"x-dynamo-session-id=a", identity.Session{ID: "a", Client: "dynamo"}},
	} {
		var headers []string
		for _, h := range strings.Fields(tt.headers) {
			name, value, _ := strings.Cut(h, "=")
			headers = append(headers, name, value)
		}
		if got := read(t, first, headers...); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.headers, got, tt.want)
		}
	}
	for _, bad := range []string{"", "a b", "a/", "/a", "a/b/c", "a:b", "é"} {
		if _, err := identity.New(bad); err == nil {
			t.Errorf("%q is taken for a header", bad)
		}
	}
	if _, err := identity.New(strings.Split(strings.Repeat("a ", identity.MaxHeaders)+"a", " ")...); err == nil {
		t.Error("any number of headers is taken")
	}
	if _, err := identity.New("a1/b1", "a2/b2", "a3/b3", "a4/b4", "a5/b5", "a6/b6", "a7/b7", "a8/b8"); err != nil {
		t.Error(err)
	}
	if got := read(t, []string{"a1/b1", "a2/b2", "a3/b3", "a4/b4", "a5/b5", "a6/b6", "a7/b7", "a8/b8"}, "x-session-affinity", "s"); got.ID != "s" {
		t.Errorf("%+v", got)
	}
}
