package gateway

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	api "github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/agents"
)

// agentRequest is a request as an agent's client writes it.
type agentRequest struct {
	name    string
	headers [][2]string // as often as they are given, in this order, with names in this case
	members object      // of the body
	pad     int         // bytes of a member that fills the body
	chunks  int         // the body comes in so many chunks; 0: as a whole, with its length
	// What it says of its session; empty: nothing. The session may have ended with it.
	session, parent string
	ended           bool
	refused         bool // it is no HTTP
}

// agentRequests are those of real clients, and further ones that nobody should send.
func agentRequests(t *testing.T) (all []agentRequest) {
	for _, r := range agents.Requests(t) {
		all = append(all, agentRequest{name: r.Name, headers: r.Headers, session: r.Session, parent: r.Parent, ended: r.Final})
	}
	long := strings.Repeat("l", 257)
	type h = [][2]string
	program := func(members object) object { return object{"vllm_xargs": object{"agentic_context": members}} }
	return append(all, []agentRequest{
		{name: "no session", headers: h{{"User-Agent", "curl/8"}}},
		{name: "vllm-router", members: program(object{"program_id": "v1", "parent_program_id": "v0", "root_program_id": "v0"}), session: "v1", parent: "v0"},
		{name: "vllm-router, it ends", members: program(object{"program_id": "v2", "expected_resume": false}), session: "v2", ended: true},
		{name: "the body of vLLM", members: object{"session_id": "b1"}, session: "b1"},
		{name: "a header before the body", headers: h{{"x-session-affinity", "b2"}}, members: object{"session_id": "b3"}, session: "b2"},

		{name: "two clients", headers: h{{"x-session-id", "o1"}, {"X-Claude-Code-Session-Id", "c1"}, {"x-parent-session-id", "o0"}}, session: "c1"},
		{name: "two clients, children", headers: h{
			{"thread-id", "t1"}, {"x-codex-parent-thread-id", "t0"}, {"x-claude-code-agent-id", "c2"}, {"x-claude-code-session-id", "c0"},
		}, session: "c2", parent: "c0"},
		{name: "a parent of another client", headers: h{{"x-smg-routing-key", "s1"}, {"x-parent-session-id", "o0"}, {"x-dynamo-parent-session-id", "d0"}}, session: "s1"},
		{name: "a parent alone", headers: h{{"x-parent-session-id", "o0"}}},
		{name: "empty, then another client's", headers: h{{"x-dynamo-session-id", ""}, {"x-dynamo-parent-session-id", "d0"}, {"x-session-id", "o2"}}, session: "o2"},
		{name: "spaces, then a value", headers: h{{"x-session-id", "   "}, {"x-session-id", "o3"}, {"x-session-id", "o4"}}, session: "o3"},
		{name: "two parents", headers: h{{"x-session-id", "o5"}, {"x-parent-session-id", "p1"}, {"x-parent-session-id", "p2"}}, session: "o5", parent: "p1"},
		{name: "in capitals", headers: h{{"X-SESSION-ID", "O6"}, {"X-PARENT-SESSION-ID", "P6"}}, session: "O6", parent: "P6"},
		{name: "with spaces around", headers: h{{"x-session-id", "\t o7 \t"}}, session: "o7"},
		{name: "not ASCII", headers: h{{"x-session-id", "Gespräch-é-会話"}}, session: "Gespräch-é-会話"},
		{name: "other marks", headers: h{{"x-session-id", `a;b="c d"/\{}<>`}}, session: `a;b="c d"/\{}<>`},
		{name: "a final that is none", headers: h{{"x-session-id", "o8"}, {"x-dynamo-session-final", "maybe"}}, session: "o8"},
		{name: "final, said by another name", headers: h{{"x-session-id", "o9"}, {"X-Dynamo-Session-Final", "Yes"}}, session: "o9", ended: true},

		{name: "as long as may be", headers: h{{"x-session-id", long[1:]}}, session: long[1:]},
		{name: "too long", headers: h{{"x-session-id", long}}},
		{name: "too long, then another client's", headers: h{{"x-session-id", long}, {"x-smg-routing-key", "s2"}}, session: "s2"},
		{name: "a parent that is too long", headers: h{{"x-session-id", "o10"}, {"x-parent-session-id", long}}, session: "o10"},
		{name: "its own parent", headers: h{{"x-session-id", "o11"}, {"x-parent-session-id", "o11"}}, session: "o11"},
		{name: "a is b's parent", headers: h{{"x-session-id", "cycle-a"}, {"x-parent-session-id", "cycle-b"}}, session: "cycle-a", parent: "cycle-b"},
		{name: "and b is a's", headers: h{{"x-session-id", "cycle-b"}, {"x-parent-session-id", "cycle-a"}}, session: "cycle-b", parent: "cycle-a"},
		{name: "a tab inside", headers: h{{"x-session-id", "a\tb"}}},
		{name: "a control character", headers: h{{"x-session-id", "a\x01b"}}, refused: true},
		{name: "the service's own name", headers: h{{"x-session-id", "\x01sg:x"}}, refused: true},
		{name: "the service's own name, in the body", members: object{"session_id": "\x02x"}},
		{name: "NUL, in the body", members: object{"session_id": "a\x00"}},

		{name: "64 KiB", headers: h{{"x-session-id", "o12"}}, pad: 64 << 10, session: "o12"},
		{name: "64 KiB in chunks", headers: h{{"x-session-id", "o13"}, {"x-parent-session-id", "p13"}}, pad: 64 << 10, chunks: 33, session: "o13", parent: "p13"},
		{name: "chunks of a byte", headers: h{{"thread-id", "t13"}, {"session-id", "t12"}}, chunks: 1 << 20, session: "t13", parent: "t12"},
		{name: "a program in the last chunk", members: program(object{"program_id": "v3", "parent_program_id": "v0"}), pad: 64 << 10, chunks: 7, session: "v3", parent: "v0"},
	}...)
}

// ownOfService are headers that an engine gets from the service alone, whatever a client says in them.
var ownOfService = [][2]string{
	{"X-Select-Deadline-Ms", "60000"},
	{"X-Select-On-Miss", "place"},
	{"X-Llm-D-Slo-Ttft-Ms", "60000"},
	{"X-Llm-D-Prefiller-Host-Port", evil},
	{"X-Llm-D-Encoder-Hosts-Ports", evil},
	{"X-Llm-D-Kv-Cache-Source-Host-Port", evil},
	{"X-Llm-D-Model-Name-Rewrite", "x"},
	{"X-Llm-D-Dp-Winning-Ranks", "1"},
	{"X-Kv-Cache-Source-Host-Port", evil},
	{"X-Prefiller-Host-Port", evil},
	{"X-Prefiller-Data-Parallel-Rank", "1"},
}

// evil is an address to which a client would lead an engine.
const evil = "192.0.2.1:8000"

// text is the request as HTTP/1.1 has it, and its body.
func (r *agentRequest) text(host string) (request, body []byte) {
	fields := object{"model": model, "max_tokens": 2, "messages": []any{object{"role": "user", "content": "Hello"}}}
	if r.pad > 0 {
		fields["metadata"] = object{"pad": strings.Repeat("x", r.pad)}
	}
	for name, value := range r.members {
		fields[name] = value
	}
	body, err := json.Marshal(fields)
	if err != nil {
		panic(err) // it is of plain values
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n", chats, host)
	for _, h := range r.headers {
		fmt.Fprintf(&out, "%s: %s\r\n", h[0], h[1])
	}
	if r.chunks == 0 {
		fmt.Fprintf(&out, "Content-Length: %d\r\n\r\n%s", len(body), body)
		return out.Bytes(), body
	}
	out.WriteString("Transfer-Encoding: chunked\r\n\r\n")
	for piece := range slices.Chunk(body, max(1, len(body)/r.chunks)) {
		fmt.Fprintf(&out, "%x\r\n%s\r\n", len(piece), piece)
	}
	out.WriteString("0\r\n\r\n")
	return out.Bytes(), body
}

// write sends the request on a connection of its own.
func (r *agentRequest) write(ctx context.Context, url string) (a answered, body []byte, err error) {
	host := strings.TrimPrefix(url, "http://")
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return a, nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(e2e.Patience)); err != nil {
		return a, nil, err
	}
	request, body := r.text(host)
	if _, err := conn.Write(request); err != nil {
		return a, nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodPost})
	if err != nil {
		return a, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answered{status: resp.StatusCode, header: resp.Header, body: string(text)}, body, err
}

// agentsClients: the requests of agents' clients, and such as nobody should send, come to the engine with the headers and the body that
// they had, and without what only the service may say. Through Envoy they are of the same sessions and groups as through the proxy.
func agentsClients(t *testing.T) {
	for mode, options := range map[string][]string{"off": nil, "soft": nil, "hard": {"--session-affinity-ttl-secs", "3600"}} {
		t.Run(mode, func(t *testing.T) {
			if testing.Short() && mode != "soft" {
				t.Skip("not one of the short ones")
			}
			playAgents(t, mode, append(options, "--gateway-session-affinity", mode))
		})
	}
}

func playAgents(t *testing.T, mode string, options []string) {
	b := lay(t, setup{service: options})
	proxy := e2e.FreePort(t)
	other := e2e.Serve(t, nil, append(options, "--gateway-port", strconv.Itoa(e2e.FreePort(t)), "--proxy-port", strconv.Itoa(proxy))...)
	b.register(other)
	fronts := []struct {
		name, url string
		service   *e2e.Service
	}{{"Envoy", b.envoy.url, b.picker}, {"the proxy", fmt.Sprint("http://127.0.0.1:", proxy), other}}
	var lists [2]map[string]listed
	for i, front := range fronts {
		want := make(map[string]string) // sessions that stay, with their parents
		for _, r := range agentRequests(t) {
			r.headers = slices.Concat(r.headers, ownOfService)
			a, body, err := r.write(t.Context(), front.url)
			if r.refused {
				if a.status != http.StatusBadRequest && err == nil { // Envoy may close the connection without an answer
					t.Errorf("%s: %s is answered with %v", front.name, r.name, a)
				}
				continue
			}
			if err != nil || a.status != http.StatusOK {
				t.Errorf("%s: %s: %v, %v", front.name, r.name, a, err)
				continue
			}
			at, got := only(t, b.engines)
			r.arrived(t, front.name+": "+r.name, got, body)
			if got.hash != sha256.Sum256(body) {
				t.Errorf("%s: %s: engine %s got another body of %d bytes, not %d", front.name, r.name, at.name, got.length, len(body))
			}
			b.idleAt(front.service)
			switch {
			case r.ended:
				delete(want, r.session)
			case mode == "hard" && r.parent != "": // the group is bound in its place
			case r.session != "":
				want[r.session] = r.parent
			}
		}
		lists[i] = listSessions(t, front.service)
		for name, parent := range want {
			if got, ok := lists[i][name]; !ok || got.Parent != parent {
				t.Errorf("%s: session %.40q is listed as %+v, %t; want parent %.40q", front.name, name, got, ok, parent)
			}
		}
		for name, s := range lists[i] {
			if _, ok := want[name]; !ok && s.NameOf == "client" {
				t.Errorf("%s: there is a session %.40q: %+v", front.name, name, s)
			}
		}
	}
	for name, one := range lists[0] {
		if two := lists[1][name]; one != two {
			t.Errorf("session %.40q is %+v through Envoy, and %+v through the proxy", name, one, two)
		}
	}
	if len(lists[0]) != len(lists[1]) {
		t.Errorf("%d sessions through Envoy, %d through the proxy", len(lists[0]), len(lists[1]))
	}
	for _, reason := range []string{"too_long", "control_character", "reserved"} {
		metric := `select_service_session_names_ignored_total{reason="` + reason + `"}`
		if n, m := b.picker.Metric(t, metric), other.Metric(t, metric); n != m || n == 0 {
			t.Errorf("%s: %v names through Envoy, %v through the proxy", reason, n, m)
		}
	}
}

// arrived checks the headers that reached an engine.
func (r *agentRequest) arrived(t *testing.T, what string, got seen, body []byte) {
	t.Helper()
	sent := make(http.Header)
	for _, h := range r.headers {
		sent.Add(h[0], textproto.TrimString(h[1]))
	}
	for name, values := range sent {
		if name == "User-Agent" { // of several Envoy makes one
			continue
		}
		if slices.ContainsFunc(ownOfService, func(own [2]string) bool { return own[0] == name }) {
			values = nil
		}
		if !slices.Equal(got.header[name], values) {
			t.Errorf("%s: the engine got %s: %q, want %q", what, name, got.header[name], values)
		}
	}
	if got.length != len(body) {
		t.Errorf("%s: the engine got %d bytes, want %d", what, got.length, len(body))
	}
}

// listed is what a list of sessions says of one that does not depend on the time and the choice.
type listed struct {
	NameOf, Parent, Group, Bound, Class string
	Turns                               uint32
	Tokens                              uint64
}

func listSessions(t *testing.T, service *e2e.Service) map[string]listed {
	t.Helper()
	var page api.SessionPage
	service.Must(t, http.StatusOK, http.MethodGet, "/sessions", nil, &page)
	all := make(map[string]listed)
	for _, s := range page.Sessions {
		all[cmp.Or(s.Name, "?")] = listed{s.NameOf, s.Parent, s.Group, s.Bound, s.Class, s.Turns, s.Tokens}
	}
	return all
}
