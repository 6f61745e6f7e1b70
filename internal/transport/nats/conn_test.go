package nats

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/select-service/select-service/pkg/replicasync"
	"github.com/select-service/select-service/test/e2e"
	"github.com/select-service/select-service/test/natstest"
)

// replica is a connection that runs, with what it was told.
type replica struct {
	*Conn
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
	r := &replica{followed: make(chan string, 16), unfollowed: make(chan string, 16)}
	c, err := Dial(Config{
		Credentials: credentials,
		Servers:     []string{server}, Fleet: fleet, Replica: name, Process: process, URL: "http://0.0.0.0:" + fmt.Sprint(process), Log: zerolog.Nop(),
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

	large := strings.Repeat("x", 3*partSize+1)
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
	if text, err := io.ReadAll(body); err != nil || string(text) != "limit=1"+large {
		t.Errorf("answer of %d bytes: %v", len(text), err)
	}
	for address, want := range map[string]string{"nats://a/x": "no such page", "nats://nobody/page": "no responders"} {
		body, err := b.Get(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(body); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
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
	c.roll = newMembers(c)
	c.roll.note(Member{Name: "a", Process: 1})
	c.roll.note(Member{Name: "b", Process: 2})
	c.roll.follow()
	c.roll.note(Member{Name: "b", Process: 3})
	c.roll.follow()
	full = false
	c.roll.follow()
	c.roll.note(Member{Name: "b", Process: 3})
	c.roll.follow()
	if want := []string{"nats://a", "nats://b", "nats://b", "nats://b"}; !slices.Equal(asked, want) {
		t.Errorf("followed %v, want %v", asked, want)
	}
}

// TestPeersAreAwaited proves that who asks for the others' URLs gets them although the fleet cannot be
// reached at first, and is not kept beyond its own deadline.
func TestPeersAreAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Conn{config: Config{Log: zerolog.Nop()}}
		c.roll = newMembers(c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		time.AfterFunc(20*time.Second, func() { c.become(Connected, nil) })
		time.AfterFunc(21*time.Second, func() { c.roll.note(Member{Name: "b", Process: 2, URL: "http://b"}) })
		if got := c.Peers(ctx); !slices.Equal(got, []string{"http://b"}) || time.Since(began) > 25*time.Second {
			t.Errorf("%v after %v", got, time.Since(began))
		}
		c.become(Away, errLost)
		c.Peers(ctx)
		if took := time.Since(began); took != time.Minute {
			t.Errorf("waited until %v", took)
		}
	})
}

// TestAccounts proves that with the accounts of docs/fleet-servers.md, of which one has an NKey instead of
// a password, nobody can speak for another replica, or be asked in its place, and that the rest works.
func TestAccounts(t *testing.T) {
	page, err := os.ReadFile("../../../docs/fleet-servers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```\nauthorization {\n  users = [\n")
	user, _, ok := strings.Cut(rest, "  ]\n}\n```")
	if !ok {
		t.Fatal("the page has no accounts")
	}
	dir := t.TempDir()
	conf, seedFile := filepath.Join(dir, "accounts.conf"), filepath.Join(dir, "b.nk")
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := key.Seed()
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(seedFile, append(seed, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	b := strings.NewReplacer("user: a, password: $A", "nkey: "+public, ".a.>", ".b.>", "ask.a", "ask.b").Replace(user)
	truth := strings.Repeat("true", partSize) // in parts that this server takes
	text := "max_payload: 65536\nauthorization { users = [\n" + strings.ReplaceAll(user, "$A", "pa") + b + "] }\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	server := natstest.Start(t, "-c", conf)
	impostor := joinWith(t, seedFile, server.URL, "default", "a", 9) // b's credentials, a's name
	defer impostor.stop()
	impostor.SetAnswer(func(_ context.Context, w io.Writer, _ *url.URL) error {
		_, err := io.WriteString(w, "a lie")
		return err
	})
	genuine := join(t, strings.Replace(server.URL, "nats://", "nats://a:pa@", 1), "default", "a", 1)
	other := joinWith(t, seedFile, server.URL, "default", "b", 2)
	defer genuine.stop()
	defer other.stop()
	genuine.SetAnswer(func(_ context.Context, w io.Writer, _ *url.URL) error {
		_, err := io.WriteString(w, truth)
		return err
	})
	takes(t, "b follows a", other.followed, "nats://a")
	if m := other.Members(); len(m) != 1 || m[0].Process != 1 {
		t.Errorf("b hears %+v", m)
	}
	for range 10 {
		body, err := other.Get(t.Context(), "nats://a/page")
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(body); err != nil || string(text) != truth {
			t.Errorf("a says %.100q, %v", text, err)
		}
	}
	if err := bucketWorks(t.Context(), other.Bucket()); err != nil {
		t.Errorf("%v; %s", err, other.Status().Fault)
	}
	within(t, "the impostor is told", func() bool { return strings.Contains(impostor.Status().Fault, "ermissions") })
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
