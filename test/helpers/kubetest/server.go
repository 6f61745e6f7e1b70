// Package kubetest is a stand-in of a Kubernetes API server for tests: it lists, watches and errs
// on command, over HTTP/2 with TLS. It has no defaults, no validation and no controllers.
package kubetest

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Object is an object of the API, as JSON has it.
type Object = map[string]any

// Server is a stand-in of an API server.
type Server struct {
	http   *httptest.Server
	frozen sync.RWMutex // held while nothing is read or written
	// freezes: Freeze holds frozen. Only the test uses it.
	freezes bool

	mu      sync.Mutex // guards the fields below
	version int
	objects map[string]map[string]Object // by resource and namespace/name
	history []change
	floor   int           // watches from a version below are answered 410
	changed chan struct{} // closed at the next change
	cuts    int           // of all watches

	// Answer, if set, may answer a request itself; it returns true then. It is called under the
	// server's lock.
	answer func(w http.ResponseWriter, r *http.Request) bool
	seen   map[string]int // requests by resource and verb
	tokens []string
	// allowed: the account may read; installed: there are InferencePools; killed: nobody answers.
	allowed, installed, killed bool
}

type change struct {
	version  int
	kind     string // ADDED, MODIFIED, DELETED
	resource string
	object   Object
	before   Object // nil: none
}

// New starts a server that ends with the test.
func New(t testing.TB) *Server {
	s := newServer()
	s.serve("127.0.0.1:0")
	t.Cleanup(func() {
		s.Thaw()
		s.Kill()
	})
	return s
}

func newServer() *Server {
	return &Server{
		version: 1, objects: make(map[string]map[string]Object), changed: make(chan struct{}), seen: make(map[string]int),
		allowed: true, installed: true,
	}
}

// serve starts to answer at an address. All servers have the same certificate.
func (s *Server) serve(address string) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		panic(fmt.Sprintf("stand-in of an API server: %v", err))
	}
	s.http = httptest.NewUnstartedServer(s)
	_ = s.http.Listener.Close()
	s.http.Listener = gatedListener{ln, &s.frozen}
	s.http.EnableHTTP2 = true
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.http.StartTLS()
}

// Kill is part of API.
func (s *Server) Kill() {
	s.setKilled(true)
	s.CutWatches()
	if s.http != nil {
		s.http.CloseClientConnections()
		s.http.Close()
	}
}

func (s *Server) setKilled(killed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killed = killed
}

// Start is part of API. A server that starts has nothing for watches of versions from before.
func (s *Server) Start() {
	s.mu.Lock()
	s.version++
	s.mu.Unlock()
	s.Compact()
	s.setKilled(false)
	if s.http != nil {
		s.serve(s.http.Listener.Addr().String())
	}
}

// Freeze is part of API.
func (s *Server) Freeze() {
	s.frozen.Lock()
	s.freezes = true
}

// Thaw is part of API.
func (s *Server) Thaw() {
	if s.freezes {
		s.freezes = false
		s.frozen.Unlock()
	}
}

// gatedListener accepts connections that hear nothing while a lock is held.
type gatedListener struct {
	net.Listener
	gate *sync.RWMutex
}

// Accept implements net.Listener.
func (l gatedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return gatedConn{conn, l.gate}, err
}

type gatedConn struct {
	net.Conn
	gate *sync.RWMutex
}

// Read implements net.Conn.
func (c gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.gate.RLock()
	defer c.gate.RUnlock()
	return n, err
}

// Write implements net.Conn.
func (c gatedConn) Write(p []byte) (int, error) {
	c.gate.RLock()
	defer c.gate.RUnlock()
	return c.Conn.Write(p)
}

// Allow is part of API.
func (s *Server) Allow(allowed bool) {
	s.mu.Lock()
	s.allowed = allowed
	s.mu.Unlock()
}

// Install is part of API.
func (s *Server) Install(present bool) {
	s.mu.Lock()
	s.installed = present
	for key, o := range s.objects["inferencepools"] {
		if !present {
			s.recordLocked("DELETED", "inferencepools", o, o)
			delete(s.objects["inferencepools"], key)
		}
	}
	s.mu.Unlock()
	s.CutWatches()
}

// Kubeconfig is part of API.
func (s *Server) Kubeconfig(t testing.TB) string {
	return s.KubeconfigOf(t, "token: secret")
}

// KubeconfigOf is Kubeconfig for a user with the given credentials.
func (s *Server) KubeconfigOf(t testing.TB, user string) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	if err := os.WriteFile(path, []byte(kubeconfig(s.http.URL, authority, user)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Answer makes a function answer requests before the server does; nil: none. It returns whether
// it has.
func (s *Server) Answer(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

// Seen returns how many requests there were, by resource and verb: "pods list".
func (s *Server) Seen(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[what]
}

// Tokens returns the Authorization headers in order, without repetitions.
func (s *Server) Tokens() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Compact(slices.Clone(s.tokens))
}

// CutWatches ends all watches.
func (s *Server) CutWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cuts++
	s.wakeLocked()
}

// Bookmark sends all watches a bookmark.
func (s *Server) Bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordLocked(bookmark, "", Object{"metadata": Object{}}, nil)
}

// bookmark is the kind of a change that is none.
const bookmark = "BOOKMARK"

// Compact makes versions up to now too old for watches.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.floor = s.version
}

// Put is part of API.
func (s *Server) Put(resource string, o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(o)
	before := s.objects[resource][key]
	kind := "MODIFIED"
	if before == nil {
		kind = "ADDED"
	}
	s.recordLocked(kind, resource, o, before)
	if s.objects[resource] == nil {
		s.objects[resource] = make(map[string]Object)
	}
	s.objects[resource][key] = s.history[len(s.history)-1].object
}

// Delete is part of API. The DELETED event has the object's last state.
func (s *Server) Delete(resource, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := namespace + "/" + name
	if before := s.objects[resource][key]; before != nil {
		s.recordLocked("DELETED", resource, before, before)
		delete(s.objects[resource], key)
	}
}

// Get is part of API.
func (s *Server) Get(resource, namespace, name string) Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[resource][namespace+"/"+name]
}

func (s *Server) recordLocked(kind, resource string, o, before Object) {
	s.version++
	o = maps.Clone(o)
	meta := maps.Clone(o["metadata"].(Object))
	meta["resourceVersion"] = strconv.Itoa(s.version)
	o["metadata"] = meta
	s.history = append(s.history, change{s.version, kind, resource, o, before})
	s.wakeLocked()
}

func (s *Server) wakeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func keyOf(o Object) string {
	meta := o["metadata"].(Object)
	return fmt.Sprint(meta["namespace"]) + "/" + fmt.Sprint(meta["name"])
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// …/namespaces/NAMESPACE/RESOURCE
	parts := strings.Split(r.URL.Path, "/")
	n := len(parts)
	if n < 3 || parts[n-3] != "namespaces" {
		Fail(w, http.StatusNotFound, "NotFound", "no such path")
		return
	}
	q := r.URL.Query()
	namespace, resource := parts[n-2], parts[n-1]
	verb := "list"
	if q.Get("watch") != "" {
		verb = "watch"
	}
	s.mu.Lock()
	s.seen[resource+" "+verb]++
	s.tokens = append(s.tokens, r.Header.Get("Authorization"))
	if s.answer != nil && s.answer(w, r) {
		s.mu.Unlock()
		return
	}
	allowed, installed := s.allowed, s.installed
	s.mu.Unlock()
	switch {
	case !allowed:
		Fail(w, http.StatusForbidden, "Forbidden", resource+" is forbidden")
		return
	case !installed && resource == "inferencepools":
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	match := matcher(namespace, q.Get("labelSelector"), q.Get("fieldSelector"))
	if verb == "watch" {
		s.watch(w, r, resource, match)
		return
	}
	s.list(w, r, resource, match)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, resource string, match func(Object) bool) {
	s.mu.Lock()
	var items []Object
	for _, key := range slices.Sorted(maps.Keys(s.objects[resource])) {
		if o := s.objects[resource][key]; match(o) {
			items = append(items, o)
		}
	}
	version := s.version
	s.mu.Unlock()
	meta := Object{"resourceVersion": strconv.Itoa(version)}
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	items = items[min(from, len(items)):]
	if limit, _ := strconv.Atoi(r.URL.Query().Get("limit")); limit > 0 && len(items) > limit {
		items = items[:limit]
		meta["continue"] = strconv.Itoa(from + limit)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(Object{"kind": kindOf[resource] + "List", "apiVersion": versionOf[resource], "metadata": meta, "items": slices.Concat([]Object{}, items)})
}

var kindOf = map[string]string{"pods": "Pod", "inferencepools": "InferencePool", "endpointslices": "EndpointSlice"}

var versionOf = map[string]string{"pods": "v1", "inferencepools": "inference.networking.k8s.io/v1", "endpointslices": "discovery.k8s.io/v1"}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, resource string, match func(Object) bool) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	cuts := s.cuts
	old := from < s.floor
	s.mu.Unlock()
	if old {
		Event(w, "ERROR", Object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": http.StatusGone, "reason": "Expired", "message": "too old"})
		return
	}
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		s.mu.Lock()
		i, _ := slices.BinarySearchFunc(s.history, from+1, func(c change, v int) int { return c.version - v })
		news, changed, cut := slices.Clone(s.history[i:]), s.changed, s.cuts != cuts
		s.mu.Unlock()
		for _, c := range news {
			from = c.version
			if c.kind == bookmark {
				Event(w, bookmark, typed(resource, c.object))
				continue
			}
			if c.resource != resource {
				continue
			}
			kind := c.kind
			is, was := c.kind != "DELETED" && match(c.object), c.before != nil && match(c.before)
			switch { // as an API server does with selectors
			case !is && !was:
				continue
			case is && !was:
				kind = "ADDED"
			case !is:
				kind = "DELETED"
			}
			o := c.object
			if kind == "DELETED" && c.kind != "DELETED" { // the last state that matched
				o = maps.Clone(c.before)
				meta := maps.Clone(o["metadata"].(Object))
				meta["resourceVersion"] = strconv.Itoa(c.version)
				o["metadata"] = meta
			}
			Event(w, kind, typed(resource, o))
		}
		if cut {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func typed(resource string, o Object) Object {
	o = maps.Clone(o)
	o["kind"], o["apiVersion"] = kindOf[resource], versionOf[resource]
	return o
}

// Event writes an event of a watch.
func Event(w http.ResponseWriter, kind string, o Object) {
	_ = json.NewEncoder(w).Encode(Object{"type": kind, "object": o})
	w.(http.Flusher).Flush()
}

// Fail answers with a Status.
func Fail(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(Object{"kind": "Status", "apiVersion": "v1", "metadata": Object{}, "status": "Failure", "code": code, "reason": reason, "message": message})
}

// matcher knows selectors of the form a=b,c=d, and metadata.name=x.
func matcher(namespace, labels, fields string) func(Object) bool {
	wanted := func(text string) [][2]string {
		var all [][2]string
		for part := range strings.SplitSeq(text, ",") {
			if key, value, ok := strings.Cut(part, "="); ok {
				all = append(all, [2]string{key, strings.TrimPrefix(value, "=")})
			}
		}
		return all
	}
	byLabel, byField := wanted(labels), wanted(fields)
	return func(o Object) bool {
		meta := o["metadata"].(Object)
		if meta["namespace"] != namespace {
			return false
		}
		for _, f := range byField {
			if f[0] != "metadata.name" || meta["name"] != f[1] {
				return false
			}
		}
		has, _ := meta["labels"].(Object)
		for _, l := range byLabel {
			if has[l[0]] != l[1] {
				return false
			}
		}
		return true
	}
}

// Pod returns a ready pod with the label app=vllm. Its UID is its name with a suffix.
func Pod(namespace, name, ip string, change ...func(o Object)) Object {
	o := Object{
		"metadata": Object{
			"namespace": namespace, "name": name, "uid": name + "-uid", "labels": Object{"app": "vllm"},
			"creationTimestamp": "2026-01-01T00:00:00Z", "annotations": Object{},
		},
		"spec": Object{"containers": []Object{{"name": "engine"}}},
		"status": Object{
			"phase": "Running", "podIP": ip,
			"conditions": []Object{{"type": "Ready", "status": "True"}},
		},
	}
	for _, c := range change {
		c(o)
	}
	return o
}

// Ready sets the condition of a pod.
func Ready(ready bool) func(Object) {
	return func(o Object) {
		status := "False"
		if ready {
			status = "True"
		}
		set(o, "status", "conditions", []Object{{"type": "Ready", "status": status}})
	}
}

// Labels sets the labels of an object.
func Labels(pairs ...string) func(Object) { return texts("labels", pairs) }

// Annotations sets the annotations of an object.
func Annotations(pairs ...string) func(Object) { return texts("annotations", pairs) }

func texts(member string, pairs []string) func(Object) {
	return func(o Object) {
		all := Object{}
		for i := 0; i < len(pairs); i += 2 {
			all[pairs[i]] = pairs[i+1]
		}
		set(o, "metadata", member, all)
	}
}

// UID sets the UID of an object.
func UID(uid string) func(Object) { return func(o Object) { set(o, "metadata", "uid", uid) } }

// Deleted sets the deletionTimestamp of an object.
func Deleted(at time.Time) func(Object) {
	return func(o Object) { set(o, "metadata", "deletionTimestamp", at.UTC().Format(time.RFC3339)) }
}

// Restarts sets how often the container of a pod has restarted.
func Restarts(n int) func(Object) {
	return func(o Object) {
		set(o, "status", "containerStatuses", []Object{{"name": "engine", "restartCount": n}})
	}
}

// Phase sets the phase of a pod.
func Phase(phase string) func(Object) { return func(o Object) { set(o, "status", "phase", phase) } }

// Ports sets the named container ports of a pod.
func Ports(ports map[string]int) func(Object) {
	return func(o Object) {
		var all []Object
		for _, name := range slices.Sorted(maps.Keys(ports)) {
			all = append(all, Object{"name": name, "containerPort": ports[name]})
		}
		set(o, "spec", "containers", []Object{{"name": "engine", "ports": all}})
	}
}

func set(o Object, part, member string, value any) {
	inside := maps.Clone(o[part].(Object))
	inside[member] = value
	o[part] = inside
}

// Pool returns an InferencePool for pods with the label app=APP.
func Pool(namespace, name, app string, ports ...int) Object {
	var targets []Object
	for _, p := range ports {
		targets = append(targets, Object{"number": p})
	}
	return Object{
		"metadata": Object{"namespace": namespace, "name": name, "uid": name + "-uid"},
		"spec": Object{
			"selector": Object{"matchLabels": Object{"app": app}}, "targetPorts": targets,
			"endpointPickerRef": Object{"name": "select-service", "port": Object{"number": 9002}},
		},
	}
}

// Endpoint is one of an EndpointSlice.
func Endpoint(namespace, pod, ip string, conditions Object) Object {
	e := Object{"addresses": []string{ip}, "conditions": conditions}
	if pod != "" {
		e["targetRef"] = Object{"kind": "Pod", "namespace": namespace, "name": pod, "uid": pod + "-uid"}
	}
	return e
}

// Slice returns an EndpointSlice of a Service with named ports.
func Slice(namespace, name, service, family string, ports map[string]int, endpoints ...Object) Object {
	var all []Object
	for _, n := range slices.Sorted(maps.Keys(ports)) {
		all = append(all, Object{"name": n, "port": ports[n]})
	}
	return Object{
		"metadata":    Object{"namespace": namespace, "name": name, "uid": name + "-uid", "labels": Object{"kubernetes.io/service-name": service}},
		"addressType": family, "ports": all, "endpoints": endpoints,
	}
}
