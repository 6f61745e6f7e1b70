package bus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/natstest"
)

// replica is a connection that runs, with what it was told.
type replica struct {
	*Conn
	account              *memory.Account // of answers: room for one that is read and one that is written
	followed, unfollowed chan string
	stop                 func()
}

func join(t *testing.T, server, fleet, name string, process uint64) *replica {
	t.Helper()
	return joinWith(t, "", server, fleet, name, process)
}

// joinWith is join with a file of credentials.
func joinWith(t *testing.T, credentials, server, fleet, name string, process uint64) *replica {
	t.Helper()
	r := &replica{followed: make(chan string, 16), unfollowed: make(chan string, 16), account: memory.NewAccount("snapshots", windowBytes+partSize)}
	c, err := Dial(Config{
		Credentials: credentials, Snapshots: r.account,
		Servers: []string{server}, Fleet: fleet, Replica: name, Process: process, URL: "http://0.0.0.0:" + fmt.Sprint(process), Log: zerolog.Nop(),
		Follow: func(endpoint string) error { r.followed <- endpoint; return nil }, Unfollow: func(endpoint string) { r.unfollowed <- endpoint },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Conn = c
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	return r
}

var errNotYet = errors.New("not yet")

// within fails the test if a condition does not come true.
func within(t *testing.T, what string, is func() bool) {
	t.Helper()
	e2e.Eventually(t, what, func() error {
		if is() {
			return nil
		}
		return errNotYet
	})
}

func takes(t *testing.T, what string, c <-chan string, want string) {
	t.Helper()
	select {
	case got := <-c:
		if got != want {
			t.Fatalf("%s: %q, want %q", what, got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%s: nothing, want %q", what, want)
	}
}

// TestFleet proves, on a real server, that replicas find each other and not those of another fleet,
// that a follower gets what is published in order, that a replica is asked under its own name, and
// what all of them see of a server that is killed and comes back.
func TestFleet(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	server := natstest.Start(t)
	defer server.Kill(t) // a goroutine waits for it
	a, b, other := join(t, server.URL, "f", "a", 1), join(t, server.URL, "f", "b", 2), join(t, server.URL, "g", "a", 3)
	defer a.stop()
	defer other.stop()
	takes(t, "a follows", a.followed, "nats://b")
	takes(t, "b follows", b.followed, "nats://a")
	if got := b.Peers(t.Context()); !slices.Equal(got, []string{"http://127.0.0.1:1"}) {
		t.Errorf("base URLs of others: %v", got)
	}
	if m := other.Members(); len(m) > 0 {
		t.Errorf("another fleet is heard: %v", m)
	}

	got, up := make(chan string, 1<<12), make(chan bool, 16)
	stop, err := b.Follow("nats://a", func(topic string, payload []byte) { got <- topic + " " + string(payload) }, func(is bool) { up <- is })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if !<-up {
		t.Error("a connected replica is followed as if it were not")
	}
	for i := range 2000 { // above busyRate
		if err := a.Publish(replicasync.TopicEvents, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2000 {
		takes(t, "in order", got, fmt.Sprint(replicasync.TopicEvents, " ", i))
	}

	large := strings.Repeat("x", 5*windowBytes+1)
	a.SetAnswer(func(_ context.Context, w io.Writer, u *url.URL) error {
		if u.Path != "/page" {
			return errors.New("no such page")
		}
		_, err := io.WriteString(w, u.RawQuery+large)
		return err
	})
	body, err := b.Get(t.Context(), "nats://a/page?limit=1")
	if err != nil {
		t.Fatal(err)
	}
	if used := b.account.Used(); used != windowBytes {
		t.Errorf("%d bytes are on the account of an answer that is being read, want %d", used, windowBytes)
	}
	if _, err := b.Get(t.Context(), "nats://a/page"); !errors.Is(err, errNoMemory) {
		t.Errorf("a question without memory for the answer: %v", err)
	}
	if text, err := io.ReadAll(body); err != nil || string(text) != "limit=1"+large {
		t.Errorf("answer of %d bytes: %v", len(text), err)
	}
	if err := errors.Join(body.Close(), body.Close()); err != nil || b.account.Used() != 0 {
		t.Errorf("%d bytes are on the account after the answer: %v", b.account.Used(), err)
	}
	for address, want := range map[string]string{"nats://a/x": "no such page", "nats://nobody/page": "no responders"} {
		body, err := b.Get(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(body); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
		if err := body.Close(); err != nil {
			t.Error(err)
		}
	}

	server.Kill(t)
	if <-up {
		t.Error("up, although the server is gone")
	}
	within(t, "a publication fails", func() bool { return a.Publish(replicasync.TopicEvents, []byte("lost")) != nil })
	if b.Reachable("nats://a") || !b.Reachable("tcp://h:1") {
		t.Error("what can be reached without a server")
	}
	server.Restart(t)
	if !<-up {
		t.Error("not up, although the server is back")
	}
	within(t, "a publication arrives", func() bool { // what is sent while a connection is made may be lost
		_ = a.Publish(replicasync.TopicEvents, []byte("back"))
		select {
		case text := <-got:
			return text == replicasync.TopicEvents+" back"
		case <-time.After(100 * time.Millisecond):
			return false
		}
	})
	if st := b.Status(); st.State != Connected || st.Reconnects != 1 {
		t.Errorf("status %+v", st)
	}
	b.stop()
	if st := b.Status(); st.State != Closed {
		t.Errorf("state after the stop: %v", st.State)
	}
}

// TestAnswersComeOnce proves, on a real server, that an answer is received once, also where the library has asked something
// itself before, as it does for JetStream; and that nothing is sent elsewhere than to inboxes of who asks.
func TestAnswersComeOnce(t *testing.T) {
	server := natstest.Start(t)
	a, b := join(t, server.URL, "f", "a", 1), join(t, server.URL, "f", "b", 2)
	defer a.stop()
	defer b.stop()
	takes(t, "b follows a", b.followed, "nats://a")
	const size = 8 * windowBytes
	a.SetAnswer(func(_ context.Context, w io.Writer, _ *url.URL) error {
		_, err := w.Write(make([]byte, size))
		return err
	})
	if _, _, err := b.Bucket().Get(t.Context(), "head"); !errors.Is(err, ErrNoKey) {
		t.Fatal(err)
	}
	nc := b.nc.Load()
	elsewhere, err := nc.SubscribeSync("orders.important")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishMsg(&nats.Msg{Subject: b.subject("ask.a"), Reply: "orders.important", Data: []byte("/page")}); err != nil {
		t.Fatal(err)
	}
	before := nc.Stats().InBytes
	body, err := b.Get(t.Context(), "nats://a/page")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, body); err != nil || n != size {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
	if got := nc.Stats().InBytes - before; got > size+size/8 {
		t.Errorf("%d bytes are received for an answer of %d", got, size)
	}
	if n, _, _ := elsewhere.Pending(); n > 0 {
		t.Errorf("%d messages are sent to a subject that is no inbox of who asks", n)
	}
}

// talker is a server that says of NATS's protocol what a test wants.
type talker struct {
	answer atomic.Pointer[string]   // to the PING of a handshake
	opened atomic.Int64             // connections
	live   atomic.Pointer[net.Conn] // the last one
}

func (tk *talker) answers(text string) { tk.answer.Store(&text) }

// listen starts the server.
func (tk *talker) listen(t *testing.T, address string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		if c := tk.live.Load(); c != nil {
			_ = (*c).Close()
		}
		serving.Wait()
	})
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			tk.opened.Add(1)
			tk.live.Store(&c)
			serving.Go(func() { tk.serve(c) })
		}
	})
}

func (tk *talker) serve(c net.Conn) {
	_, _ = io.WriteString(c, `INFO {"server_id":"s","version":"2.15.2","proto":1,"headers":true,"max_payload":1048576}`+"\r\n")
	lines := bufio.NewReader(c)
	for shaken := false; ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		if strings.HasPrefix(line, "PING") {
			answer := "PONG"
			if !shaken {
				answer = *tk.answer.Load()
			}
			shaken = true
			_, _ = io.WriteString(c, answer+"\r\n")
			if answer != "PONG" {
				_ = c.Close()
				return
			}
		}
	}
}

// TestServerSays proves the states of a connection to a server that is not there yet, that refuses it at
// the first time or when it comes back, and that ends it with an error that the library does not know.
func TestServerSays(t *testing.T) {
	address := "127.0.0.1:" + strconv.Itoa(e2e.FreePort(t))
	r := join(t, "nats://"+address, "f", "a", 1)
	defer r.stop()
	state := func(want State, fault string) {
		t.Helper()
		within(t, want.String(), func() bool {
			st := r.Status()
			return st.State == want && strings.Contains(st.Fault, fault)
		})
	}
	state(Connecting, "refused")
	s := new(talker)
	drop := func(answer string) {
		s.answers(answer)
		_ = (*s.live.Load()).Close()
	}
	s.answers("-ERR 'maximum connections exceeded'")
	s.listen(t, address)
	state(Refused, "connections exceeded")
	s.answers("PONG")
	state(Connected, "")
	for _, why := range []string{"Authorization Violation", "maximum account active connections exceeded", "User Authentication Expired"} {
		drop("-ERR '" + why + "'")
		state(Refused, "")
		s.answers("PONG")
		state(Connected, "")
	}
	before := s.opened.Load()
	_, _ = io.WriteString(*s.live.Load(), "-ERR 'What Is This'\r\n")
	within(t, "the connection is made anew", func() bool { return s.opened.Load() > before && r.Status().State == Connected })
	if n := r.Status().Reconnects; n != 4 {
		t.Errorf("%d reconnects, want 4", n)
	}
}

// stalling dials connections. When stalled is set, the next write of one waits for the test, and ends as
// one that has taken too long.
type stalling struct {
	stalled atomic.Bool
	bounded chan bool     // of the write that waits: its deadline is within writeTimeout
	expired chan struct{} // the deadline of the write that waits has passed
}

// stallingConn is a connection of stalling.
type stallingConn struct {
	net.Conn
	of       *stalling
	deadline time.Time // of writes, one of which is made at a time
}

// Dial implements nats.CustomDialer.
func (s *stalling) Dial(network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	return &stallingConn{Conn: c, of: s}, nil
}

func (c *stallingConn) SetWriteDeadline(at time.Time) error {
	c.deadline = at
	return c.Conn.SetWriteDeadline(at)
}

func (c *stallingConn) Write(p []byte) (int, error) {
	if !c.of.stalled.CompareAndSwap(true, false) {
		return c.Conn.Write(p)
	}
	c.of.bounded <- !c.deadline.IsZero() && time.Until(c.deadline) <= writeTimeout
	<-c.of.expired
	n, _ := c.Conn.Write(p[:1])
	return n, os.ErrDeadlineExceeded
}

// TestServerStalls proves that a server that takes nothing any more is given up within writeTimeout, and
// that nobody who asks for the state waits for it meanwhile.
func TestServerStalls(t *testing.T) {
	s := new(talker)
	s.answers("PONG")
	address := "127.0.0.1:" + strconv.Itoa(e2e.FreePort(t))
	s.listen(t, address)
	dialer := &stalling{bounded: make(chan bool), expired: make(chan struct{})}
	r, err := Dial(Config{Servers: []string{"nats://" + address}, Fleet: "f", Replica: "a", Process: 1, Log: zerolog.Nop(), dialer: dialer})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { _ = r.Run(ctx) })
	within(t, "connected", func() bool { return r.Status().State == Connected })
	dialer.stalled.Store(true)
	running.Go(func() { _ = r.Publish(replicasync.TopicEvents, make([]byte, lingerBytes)) })
	if !<-dialer.bounded {
		t.Errorf("a write may take longer than %v", writeTimeout)
	}
	if st := r.Status(); st.State != Connected {
		t.Errorf("%v while a write waits", st.State)
	}
	dialer.expired <- struct{}{}
	within(t, "the connection is made anew", func() bool { st := r.Status(); return st.State == Connected && st.Reconnects == 1 })
}

// TestFollowedLater proves that a replica that cannot be followed is tried again, and one that can is not.
func TestFollowedLater(t *testing.T) {
	var asked []string
	full := true
	c := &Conn{config: Config{Log: zerolog.Nop(), Follow: func(endpoint string) error {
		asked = append(asked, endpoint)
		if full && endpoint == "nats://b" {
			return errNotYet
		}
		return nil
	}}}
	c.membership = newMembership(c)
	c.membership.note(Member{Name: "a", Process: 1})
	c.membership.note(Member{Name: "b", Process: 2})
	c.membership.follow()
	c.membership.note(Member{Name: "b", Process: 3})
	c.membership.follow()
	full = false
	c.membership.follow()
	c.membership.note(Member{Name: "b", Process: 3})
	c.membership.follow()
	if want := []string{"nats://a", "nats://b", "nats://b", "nats://b"}; !slices.Equal(asked, want) {
		t.Errorf("followed %v, want %v", asked, want)
	}
}

// TestGreetings proves that processes that come and go, or are said to, have this replica say hello ten times a second
// at most, and that each is greeted soon.
func TestGreetings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembership(&Conn{config: Config{Log: zerolog.Nop()}})
		var said []time.Time
		ctx, cancel := context.WithCancel(t.Context())
		var saying sync.WaitGroup
		saying.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-m.wake:
					said = append(said, time.Now())
				}
			}
		})
		began := time.Now()
		m.note(Member{Name: "a", Process: 1})
		synctest.Wait()
		if len(said) != 1 || !said[0].Equal(began) {
			t.Errorf("the first one is greeted at %v, it came at %v", said, began)
		}
		for i := range uint64(1500) {
			m.note(Member{Name: "b", Process: 1 + i})
			time.Sleep(time.Millisecond)
		}
		last := time.Now()
		time.Sleep(greetEvery)
		synctest.Wait()
		if n := len(said); n > 17 || said[n-1].Before(last.Add(-time.Millisecond)) {
			t.Errorf("%d hellos in 1.6 s, the last one after %v of %v", n, said[n-1].Sub(began), last.Sub(began))
		}
		cancel()
		saying.Wait()
	})
}

// TestToldInOrder proves that what a follower is told last of the connection is so, however long it takes to hear
// what was told before.
func TestToldInOrder(t *testing.T) {
	c := &Conn{config: Config{Log: zerolog.Nop(), Replica: "b"}}
	c.in.followed = make(map[string]*follower)
	told, hearing, heard := make(chan bool, 16), make(chan struct{}), make(chan struct{})
	slow := sync.OnceFunc(func() {
		close(hearing)
		<-heard
	})
	if _, err := c.Follow("nats://a", nil, func(up bool) {
		if up {
			slow()
		}
		told <- up
	}); err != nil {
		t.Fatal(err)
	}
	var changes sync.WaitGroup
	changes.Go(func() { c.become(Connected, nil) })
	<-hearing
	lost := make(chan struct{})
	changes.Go(func() {
		c.become(Away, errLost)
		close(lost)
	})
	within(t, "the connection is lost", func() bool { return c.Phase() == Lost })
	for i, over := 0, false; i < 1000 && !over; i++ { // what has no order is told by now
		runtime.Gosched()
		select {
		case <-lost:
			over = true
		default:
		}
	}
	close(heard)
	changes.Wait()
	close(told)
	last := true
	for last = range told {
	}
	if last {
		t.Error("the follower was told last that the fleet can be reached")
	}
}

// TestOwnURL proves that a replica that says this one's base URL is not one to read the index from: both have the address at
// which a server on their own host sees them.
func TestOwnURL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := &Conn{prefix: "f.", config: Config{Log: zerolog.New(&log), Replica: "a", URL: "http://127.0.0.1:8092"}}
		c.membership = newMembership(c)
		c.become(Connected, nil)
		for range 3 {
			for name, url := range map[string]string{"b": "http://127.0.0.1:8092", "c": "http://10.0.0.3:8092"} {
				text, _ := json.Marshal(Member{Process: uint64(name[0]), URL: url})
				c.membership.receive(&nats.Msg{Subject: "f." + name + ".hello", Data: text})
			}
		}
		if got := c.Peers(t.Context()); !slices.Equal(got, []string{"http://10.0.0.3:8092"}) {
			t.Errorf("base URLs of others: %v", got)
		}
		if n := strings.Count(log.String(), "--advertise-url"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, log.String())
		}
	})
}

// TestPeersAreAwaited proves that who asks for the others' URLs gets them although the fleet cannot be
// reached at first, and is not kept beyond its own deadline.
func TestPeersAreAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Conn{config: Config{Log: zerolog.Nop()}}
		c.membership = newMembership(c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		time.AfterFunc(20*time.Second, func() {
			c.become(Connected, nil)
			if p := c.Phase(); p != Joining {
				t.Errorf("at once it is in phase %d", p)
			}
		})
		time.AfterFunc(21*time.Second, func() { c.membership.note(Member{Name: "b", Process: 2, URL: "http://b"}) })
		if got := c.Peers(ctx); !slices.Equal(got, []string{"http://b"}) || time.Since(began) > 25*time.Second {
			t.Errorf("%v after %v", got, time.Since(began))
		}
		if p := c.Phase(); p != Joined {
			t.Errorf("in phase %d, although the others were awaited", p)
		}
		c.become(Away, errLost)
		if p := c.Phase(); p != Lost {
			t.Errorf("without a connection it is in phase %d", p)
		}
		c.become(Connected, nil)
		if p := c.Phase(); p != Joined {
			t.Errorf("connected again it is in phase %d, although it knows the others", p)
		}
		time.Sleep(settleTime)
		if p := c.Phase(); p != Settled {
			t.Errorf("in the end it is in phase %d", p)
		}
		c.become(Away, errLost)
		c.Peers(ctx)
		if took := time.Since(began); took != time.Minute {
			t.Errorf("waited until %v", took)
		}
	})
}

// account returns the user a of docs/run/fleet.md, and the same as b.
func account(t *testing.T) (a, b string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/run/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```\nauthorization {\n  users = [\n")
	a, _, ok := strings.Cut(rest, "  ]\n}\n```")
	if !ok {
		t.Fatal("the page has no accounts")
	}
	return a, strings.NewReplacer("user: a", "user: b", "$A", "$B", ".a.>", ".b.>", "ask.a", "ask.b").Replace(a)
}

// identity is the keys of somebody.
type identity struct {
	nkeys.KeyPair
	public string
	seed   []byte
}

func newIdentity(t *testing.T, create func() (nkeys.KeyPair, error)) identity {
	t.Helper()
	var id identity
	var err error
	if id.KeyPair, err = create(); err == nil {
		id.public, err = id.PublicKey()
	}
	if err == nil {
		id.seed, err = id.Seed()
	}
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// signs returns a JWT about somebody as nsc makes it. claims are its member nats.
func (id identity) signs(t *testing.T, about identity, claims map[string]any) string {
	t.Helper()
	claims["version"] = 2
	body, err := json.Marshal(map[string]any{"iat": time.Now().Unix(), "iss": id.public, "sub": about.public, "name": "of a test", "nats": claims})
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"typ":"JWT","alg":"ed25519-nkey"}`)) + "." + encode(body)
	signature, err := id.Sign([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + encode(signature)
}

func writeFile(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAccounts proves that with the accounts of docs/run/fleet.md, of which one has an NKey instead of
// a password, nobody can speak for another replica, or be asked in its place, and that the rest works.
func TestAccounts(t *testing.T) {
	a, b := account(t)
	key := newIdentity(t, nkeys.CreateUser)
	b = strings.Replace(b, "user: b, password: $B", "nkey: "+key.public, 1)
	text := "max_payload: 65536\nauthorization { users = [\n" + strings.ReplaceAll(a, "$A", "pa") + b + "] }\n" // in smaller parts
	server := natstest.Start(t, "-c", writeFile(t, "accounts.conf", text))
	keepToThemselves(t, server.URL, strings.Replace(server.URL, "nats://", "nats://a:pa@", 1), "", writeFile(t, "b.nk", string(key.seed)+"\n"))
}

// TestOperator proves the same in a server with an operator, where the JWTs of users have the permissions.
func TestOperator(t *testing.T) {
	operator, system, fleet := newIdentity(t, nkeys.CreateOperator), newIdentity(t, nkeys.CreateAccount), newIdentity(t, nkeys.CreateAccount)
	unlimited := func(names ...string) map[string]any {
		limits := make(map[string]any)
		for _, name := range names {
			limits[name] = -1
		}
		return limits
	}
	limits := unlimited("subs", "data", "payload", "imports", "exports", "conn", "leaf", "mem_storage", "disk_storage", "streams", "consumer")
	limits["wildcards"] = true
	text := fmt.Sprintf("operator: %q\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {\n  %s: %q\n  %s: %q\n}\n",
		operator.signs(t, operator, map[string]any{"type": "operator", "system_account": system.public}), system.public,
		system.public, operator.signs(t, system, map[string]any{"type": "account", "limits": unlimited("subs", "data", "payload", "imports", "exports", "conn", "leaf")}),
		fleet.public, operator.signs(t, fleet, map[string]any{"type": "account", "limits": limits}))
	subjects := func(user, of string) (list []string) {
		_, rest, _ := strings.Cut(user, of+":")
		rest, _, _ = strings.Cut(rest, "]")
		for i, text := range strings.Split(rest, `"`) {
			if i%2 == 1 {
				list = append(list, text)
			}
		}
		return list
	}
	credentials := func(name, user string) string {
		key, may := newIdentity(t, nkeys.CreateUser), unlimited("subs", "data", "payload")
		may["type"] = "user"
		may["pub"] = map[string]any{"allow": subjects(user, "publish")}
		may["sub"] = map[string]any{"allow": subjects(user, "subscribe")}
		may["resp"] = map[string]any{"max": 4096, "ttl": time.Minute}
		return writeFile(t, name+".creds", "-----BEGIN NATS USER JWT-----\n"+fleet.signs(t, key, may)+"\n------END NATS USER JWT------\n\n"+
			"-----BEGIN USER NKEY SEED-----\n"+string(key.seed)+"\n------END USER NKEY SEED------\n")
	}
	a, b := account(t)
	server := natstest.Start(t, "-c", writeFile(t, "operator.conf", text))
	keepToThemselves(t, server.URL, server.URL, credentials("a", a), credentials("b", b))
}

// keepToThemselves proves that a replica a, which joins at a URL of its own, and a replica b have a fleet, and
// that an impostor with b's credentials can do no more than b, whatever it says.
func keepToThemselves(t *testing.T, server, serverOfA, credentialsOfA, credentialsOfB string) {
	t.Helper()
	says := func(r *replica, text string) {
		r.SetAnswer(func(_ context.Context, w io.Writer, _ *url.URL) error {
			_, err := io.WriteString(w, text)
			return err
		})
	}
	impostor := joinWith(t, credentialsOfB, server, "default", "a", 9)
	defer impostor.stop()
	says(impostor, "a lie")
	within(t, "the impostor is told", func() bool { return strings.Contains(impostor.Status().Fault, "ermissions") })
	genuine := joinWith(t, credentialsOfA, serverOfA, "default", "a", 1)
	other := joinWith(t, credentialsOfB, server, "default", "b", 2)
	defer genuine.stop()
	defer other.stop()
	truth := strings.Repeat("true", partSize)
	says(genuine, truth)
	takes(t, "b follows a", other.followed, "nats://a")
	if m := other.Members(); len(m) != 1 || m[0].Process != 1 {
		t.Errorf("b hears %+v", m)
	}
	heard := make(chan string, 16)
	stop, err := other.Follow("nats://a", func(_ string, payload []byte) { heard <- string(payload) }, func(bool) {})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	nc := impostor.nc.Load()
	refused := func(what, subject string, try func() error) {
		within(t, "b is refused to "+what+" "+subject, func() bool {
			if err := errors.Join(try(), nc.Flush()); err != nil { // the server refuses it before it answers that
				t.Fatal(err)
			}
			err := nc.LastError() // which may be that of a hello
			return err != nil && strings.Contains(err.Error(), fmt.Sprintf("to %q", subject))
		})
	}
	for _, subject := range []string{
		"select-service.default.a.sync", "select-service.default.a.hello", "select-service.default.a.ask.b", "select-service.other.b.sync",
		"_INBOX.default.a.x", "$JS.API.STREAM.DELETE.KV_select-service-default", "$SYS.REQ.SERVER.PING",
	} {
		refused("publish to", subject, func() error { return nc.Publish(subject, []byte{batchVersion, 0, 1, 'x'}) })
	}
	for _, subject := range []string{"select-service.default.*.ask.a", "_INBOX.default.a.>", "_INBOX.>", "select-service.>", ">"} {
		refused("subscribe to", subject, func() error {
			_, err := nc.SubscribeSync(subject)
			return err
		})
	}

	for range 10 {
		body, err := other.Get(t.Context(), "nats://a/page")
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(body); err != nil || string(text) != truth {
			t.Errorf("a says %.100q, %v", text, err)
		}
		if err := body.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := genuine.Publish(replicasync.TopicEvents, []byte("of a")); err != nil {
		t.Error(err)
	}
	takes(t, "b hears a alone", heard, "of a")
	if err := bucketWorks(t.Context(), other.Bucket()); err != nil {
		t.Errorf("%v; %s", err, other.Status().Fault)
	}
}

// bucketWorks uses everything that a bucket can.
func bucketWorks(ctx context.Context, b *Bucket) error {
	if _, _, err := b.Get(ctx, "head"); !errors.Is(err, ErrNoKey) {
		return fmt.Errorf("a key that there is not: %w", err)
	}
	first, err := b.Replace(ctx, "head", []byte("1"), 0)
	if err != nil {
		return err
	}
	for _, revision := range []uint64{0, first + 1} {
		if _, err := b.Replace(ctx, "head", []byte("lost"), revision); !errors.Is(err, ErrRevision) {
			return fmt.Errorf("revision %d, which is not the key's: %w", revision, err)
		}
	}
	second, err := b.Replace(ctx, "head", []byte("2"), first)
	if err != nil {
		return err
	}
	if value, revision, err := b.Get(ctx, "head"); err != nil || string(value) != "2" || revision != second {
		return fmt.Errorf("%q at %d, want 2 at %d: %w", value, revision, second, err)
	}
	o, err := b.opened(ctx)
	if err != nil {
		return err
	}
	if err := o.kv.Delete(ctx, "head"); err != nil {
		return err
	}
	if _, _, err := b.Get(ctx, "head"); !errors.Is(err, ErrNoKey) {
		return fmt.Errorf("a key that was deleted: %w", err)
	}
	if _, err := b.Replace(ctx, "head", []byte("3"), 0); err != nil {
		return fmt.Errorf("in the place of a key that was deleted: %w", err)
	}
	for _, key := range []string{"part.1.a", "part.1.b"} {
		if err := b.Put(ctx, key, []byte("x")); err != nil {
			return err
		}
	}
	if err := b.Remove(ctx, "part.1.a"); err != nil {
		return err
	}
	if keys, err := b.Keys(ctx, "part"); err != nil || !slices.Equal(keys, []string{"part.1.b"}) {
		return fmt.Errorf("keys %q: %w", keys, err)
	}
	return nil
}

// TestOldServers proves which versions of the server are too old for a bucket.
func TestOldServers(t *testing.T) {
	for version, old := range map[string]bool{"2.9.25": true, "1.4.1": true, "2.10.0": false, "2.15.2-RC.1": false, "3.0.0": false, "dev": false} {
		if tooOld(version) != old {
			t.Errorf("%s is too old: %v", version, !old)
		}
	}
}
