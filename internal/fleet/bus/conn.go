package bus

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/redact"
	"github.com/select-service/select-service/pkg/memory"
)

// Config says where a fleet meets, and who this replica is in it.
type Config struct {
	Servers []string // nats:// or tls:// URLs
	Fleet   string   // the fleet's name, see CheckName
	Replica string   // this replica's name in it, see CheckName
	Process uint64   // its id among the replicas, new at every start
	URL     string   // the base URL of its HTTP interface
	// Credentials is a file with the JWT and the seed of a user, or with the seed of an NKey alone; ""
	// for none.
	Credentials string
	// TLS secures the connection and, with a certificate, names this replica; nil: only what
	// tls:// URLs ask for.
	TLS    *tls.Config
	dialer nats.CustomDialer // of a test; nil: net.Dialer
	// Follow and Unfollow are called with the endpoints of replicas that have joined and departed.
	Follow   func(endpoint string) error
	Unfollow func(endpoint string)
	// Announced, if set, is called with the version of the catalog that another replica announces. It
	// must not block.
	Announced func(catalog uint64)
	// Snapshots is the account of answers that are being read and written; nil has no limit.
	Snapshots *memory.Account
	Log       zerolog.Logger
}

// CheckName returns an error if a name cannot be that of a fleet or of a replica, which are parts of
// subjects: 1 to 64 letters, digits, '-' and '_'.
func CheckName(name string) error {
	if name == "" || len(name) > 64 {
		return errors.New("a name has 1 to 64 characters")
	}
	for _, c := range []byte(name) {
		if !nameByte(c) {
			return fmt.Errorf("%q in a name: letters, digits, '-' and '_' are possible", c)
		}
	}
	return nil
}

// NameOf returns a text as a name: what cannot be in one becomes '-'.
func NameOf(text string) string {
	name := []byte(text[:min(len(text), 64)])
	for i, c := range name {
		if !nameByte(c) {
			name[i] = '-'
		}
	}
	return string(name)
}

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

// State is the state of a connection.
type State uint8

// The states of a connection.
const (
	Connecting State = iota // no server has been reached yet
	Connected
	LameDuck // connected to a server that is about to stop
	Away     // the connection was lost, and is being made again
	Refused  // the servers refuse this replica: credentials, permissions, or a limit of the account
	Closed
)

// String gives the state's name on the wire.
func (s State) String() string {
	return [...]string{"connecting", "connected", "lame_duck", "away", "refused", "closed"}[s]
}

// up reports whether there is a connection.
func (s State) up() bool { return s == Connected || s == LameDuck }

// Status is what operators are shown of a connection.
type Status struct {
	State State
	// Fault is the last error, "" if there was none since the connection was made.
	Fault      string
	Reconnects uint64
	// Dropped counts messages that this process was too slow to take, Unsent those that could
	// not be sent, Malformed those that could not be read.
	Dropped, Unsent, Malformed uint64
}

// Conn is a replica's connection to its fleet. All methods are safe for concurrent use.
type Conn struct {
	config Config
	// nc is the library's connection. It connects again by itself; one that it has given up is
	// replaced.
	nc         atomic.Pointer[nats.Conn]
	lost       chan struct{} // capacity 1: nc was given up
	prefix     string        // of all subjects of the fleet
	out        *outgoing
	in         incoming
	membership *membership

	unsent, malformed, reconnects atomic.Uint64
	maxPayload                    atomic.Int64  // of a message, in bytes; 0: not known yet
	catalog, settings             atomic.Uint64 // versions of the catalog and the settings that this replica has
	answers                       answers
	// answer writes what another replica has asked for; nil: nothing is answered.
	answer atomic.Pointer[Answer]

	// mu guards the fields below.
	mu     sync.Mutex
	state  State
	fault  string
	since  time.Time // of state
	made   bool      // a connection was made once
	joined bool      // every live replica has announced itself since the start
	server string    // URL of the last server that was connected, without credentials
}

const (
	// A server that does not answer is given up before the silence of others would mean something
	// (liveFor): two pings that are not answered, or bytes that it does not take, end a connection.
	// Until then whoever publishes may wait for the library, which writes under its lock.
	pingEvery     = time.Second
	writeTimeout  = 2 * time.Second
	reconnectWait = 250 * time.Millisecond
	dialTimeout   = 2 * time.Second
	// pendingMessages and pendingBytes bound what has arrived and is not taken yet, of one
	// subscription; pendingAnnouncements are the bytes of announcements, and of requests.
	pendingMessages, pendingBytes, pendingAnnouncements = 1 << 16, 64 << 20, 1 << 20
	// settleTime is how long after a connection was made the silence of others means nothing.
	settleTime = 3 * time.Second
)

// Dial prepares the connection, which is made and made again in the background. Errors are faults
// of the configuration.
func Dial(config Config) (*Conn, error) {
	c := &Conn{config: config, lost: make(chan struct{}, 1), prefix: "select-service." + config.Fleet + ".", since: time.Now()}
	c.out = newOutgoing(c.send)
	c.in.followed = make(map[string]*follower)
	c.answers.by = make(map[string]*partWriter)
	c.membership = newMembership(c)
	return c, c.dial()
}

// dial makes nc.
func (c *Conn) dial() error {
	config := &c.config
	opts := nats.GetDefaultOptions()
	opts.Servers = config.Servers
	opts.Name = "select-service " + config.Replica
	opts.InboxPrefix = c.inboxes(config.Replica)
	opts.CustomDialer = config.dialer
	opts.Timeout = dialTimeout
	opts.RetryOnFailedConnect = true
	opts.MaxReconnect = -1
	opts.ReconnectWait = reconnectWait
	opts.ReconnectJitter = reconnectWait
	opts.ReconnectBufSize = -1 // what is published while away is lost at once, and known to be
	opts.PingInterval = pingEvery
	opts.MaxPingsOut = 2
	opts.FlusherTimeout = writeTimeout
	opts.ReconnectOnFlusherError = true
	opts.NoEcho = true
	opts.IgnoreAuthErrorAbort = true
	opts.SubChanLen = 2 * window // of those that are read without a callback: answers
	opts.TLSConfig = config.TLS
	opts.Secure = config.TLS != nil
	if config.Credentials != "" {
		if err := useCredentials(&opts, config.Credentials); err != nil {
			return fmt.Errorf("credentials: %w", err)
		}
	}
	opts.ConnectedCB, opts.ReconnectedCB = c.connected, c.connected
	opts.ReconnectErrCB = func(_ *nats.Conn, err error) { c.notConnected(err) }
	opts.DisconnectedErrCB = func(_ *nats.Conn, err error) { c.notConnected(err) }
	opts.ClosedCB = func(nc *nats.Conn) {
		c.notConnected(nc.LastError())
		c.lost <- struct{}{} // there is one nc at a time
	}
	opts.LameDuckModeHandler = func(*nats.Conn) { c.become(LameDuck, nil) }
	opts.AsyncErrorCB = func(_ *nats.Conn, _ *nats.Subscription, err error) { c.fail(err) }
	nc, err := opts.Connect()
	if err != nil {
		return err
	}
	c.nc.Store(nc)
	if nc.IsConnected() { // before ConnectedCB, which comes from another goroutine
		c.connected(nc)
	}
	return nil
}

// useCredentials makes connections use the credentials of a file, which is read again for each connection.
func useCredentials(opts *nats.Options, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if bytes.Contains(text, []byte("NATS USER JWT")) {
		return nats.UserCredentials(file)(opts)
	}
	key, err := nats.NkeyOptionFromSeed(file)
	if err != nil {
		return err
	}
	return key(opts)
}

// Run takes part in the fleet until ctx ends, then closes the connection.
func (c *Conn) Run(ctx context.Context) error {
	defer func() {
		_ = c.out.flush() // what is lost is counted
		c.become(Closed, nil)
		c.nc.Load().Close()
		c.answers.wait()
	}()
	for {
		if err := c.subscribe(ctx); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			return err
		}
		if c.membership.run(ctx); ctx.Err() != nil {
			return nil
		}
		// After an error that the library does not know it does not connect again.
		c.config.Log.Error().Err(c.nc.Load().LastError()).Msg("the fleet's NATS server has ended the connection for a reason of its own; it is made anew")
		if !c.redial(ctx) {
			return nil
		}
	}
}

// redial makes nc again. It returns false if ctx has ended.
func (c *Conn) redial(ctx context.Context) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(announceEvery):
		}
		err := c.dial()
		if err == nil {
			return true
		}
		c.fail(err) // the file of the credentials may be about to be replaced
	}
}

// subscribe subscribes to what others publish for all, and to what they ask of this replica.
func (c *Conn) subscribe(ctx context.Context) error {
	var subscriptions []*nats.Subscription
	for _, s := range []struct {
		subject string
		take    nats.MsgHandler
		pending int // bytes
	}{
		{"*.sync", c.take, pendingBytes},
		{"*.hello", c.membership.receive, pendingAnnouncements},
		{"*.ask." + c.config.Replica, c.asked(ctx), pendingAnnouncements},
	} {
		sub, err := c.nc.Load().Subscribe(c.prefix+s.subject, s.take)
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", c.prefix+s.subject, err)
		}
		if err := sub.SetPendingLimits(pendingMessages, s.pending); err != nil {
			return err
		}
		subscriptions = append(subscriptions, sub)
	}
	c.in.mu.Lock()
	c.in.subscriptions = subscriptions
	c.in.mu.Unlock()
	return nil
}

// subject returns the subject of what this replica publishes.
func (c *Conn) subject(rest string) string { return c.prefix + c.config.Replica + "." + rest }

// connected: the connection to a server was made.
func (c *Conn) connected(nc *nats.Conn) {
	c.maxPayload.Store(nc.MaxPayload())
	server := redact.URLs(nc.ConnectedUrl()) // the name alone may be a token, which ConnectedUrlRedacted shows
	c.mu.Lock()
	c.server = server
	c.mu.Unlock()
	c.become(Connected, nil)
	c.membership.announceNow()
}

// check sees to it that the state is that of nc, which does not tell of a server that ends the
// handshake with an error.
func (c *Conn) check() {
	if c.Phase() != Lost {
		return
	}
	nc := c.nc.Load()
	if nc.IsConnected() {
		c.connected(nc)
	} else if err := nc.LastError(); err != nil {
		c.notConnected(err)
	}
}

// become changes the state, and tells those that follow. Closed is the last one: what the library
// then tells of the connection, from a goroutine of its own, is its end.
func (c *Conn) become(s State, err error) {
	c.mu.Lock()
	before := c.state
	if before == Closed || s == LameDuck && before != Connected {
		c.mu.Unlock()
		return
	}
	changed := before != s || s == Connecting && c.fault == ""
	if before != s {
		c.state, c.since = s, time.Now()
		if s == Connected {
			if c.made {
				c.reconnects.Add(1)
			}
			c.made = true
		}
	}
	c.fault = ""
	if err != nil {
		c.fault = err.Error()
	}
	server := c.server
	c.mu.Unlock()
	if !changed {
		return
	}
	switch s {
	case Connected:
		c.config.Log.Info().Str("server", server).Msg("connected to the fleet's NATS")
	case LameDuck:
		c.config.Log.Warn().Str("server", server).Msg("the fleet's NATS server is about to stop; another one is looked for")
	case Connecting, Away, Refused:
		c.config.Log.Warn().Err(err).Stringer("state", s).Msg("the fleet's NATS is away; selections go on")
	case Closed:
	}
	c.tell()
}

// notConnected: the connection was lost, or could not be made.
func (c *Conn) notConnected(err error) {
	err = cmp.Or(err, errLost)
	c.mu.Lock()
	s := c.state
	c.mu.Unlock()
	switch {
	case refuses(err):
		s = Refused
	case s.up():
		s = Away
	}
	c.become(s, err)
}

var errLost = errors.New("the connection was lost")

// refuses reports whether an error says that a server does not want this replica. The library has
// values for some of these errors, depending on when they come.
func refuses(err error) bool {
	text := strings.ToLower(err.Error())
	for _, why := range []string{"authorization violation", "authentication", "connections exceeded"} {
		if strings.Contains(text, why) {
			return true
		}
	}
	return false
}

// fail handles an error that the library tells of beside the connection's state: a slow consumer, a
// permission that is missing, but also what servers say to one that connects again.
func (c *Conn) fail(err error) {
	if refuses(err) {
		c.notConnected(err)
		return
	}
	c.mu.Lock()
	repeated := c.fault == err.Error()
	c.fault = err.Error()
	c.mu.Unlock()
	if !repeated {
		c.config.Log.Warn().Err(err).Msg("the fleet's NATS reports a fault")
	}
}

// Status returns the state of the connection.
func (c *Conn) Status() Status {
	c.mu.Lock()
	st := Status{State: c.state, Fault: c.fault}
	c.mu.Unlock()
	st.Dropped = c.in.dropped()
	st.Reconnects, st.Unsent, st.Malformed = c.reconnects.Load(), c.unsent.Load(), c.malformed.Load()
	return st
}

// Phase is how far a replica is a part of its fleet.
type Phase uint8

// The phases of a replica.
const (
	Lost    Phase = iota // the fleet cannot be reached
	Joining              // it can, and not every live replica has announced itself since the start
	Joined               // every live replica has
	Settled              // the fleet could be reached for so long that the silence of a replica means something
)

// Phase returns the phase of this replica.
func (c *Conn) Phase() Phase {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.state.up() {
		return Lost
	}
	since := time.Since(c.since)
	c.joined = c.joined || since >= joinTime
	switch {
	case since >= settleTime:
		return Settled
	case c.joined:
		return Joined
	}
	return Joining
}
