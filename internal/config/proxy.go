package config

import (
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/select-service/select-service/internal/engines/routes"
)

// Proxy configures the listener that passes clients' requests on to engines. The settings of Gateway that do not
// name Envoy hold for it too.
type Proxy struct {
	Port           uint16 // 0 is none
	Retries        int    // other engines for a request that one has not begun to serve
	ConnectTimeout time.Duration
	// FirstByteTimeout is how long an engine may take to begin its answer; 0: as long as it wants.
	FirstByteTimeout time.Duration
	Keepalive        time.Duration  // silence of a stream after which its client gets a comment; 0: never
	Trust            []netip.Prefix // networks whose X-Forwarded headers are kept
	AccessLog        bool
}

func defaultProxy() Proxy {
	return Proxy{Retries: 1, ConnectTimeout: time.Second, Keepalive: 15 * time.Second}
}

// maxProxyRetries bounds Proxy.Retries. Higher values are surely mistakes.
const maxProxyRetries = 16

var proxySettings = []option{
	{
		key: "proxy.port", flag: "proxy-port", hint: "PORT",
		bind: func(c *Config) value { return integer(&c.Proxy.Port, 0, math.MaxUint16) },
		help: "The port of the HTTP listener that takes clients' requests (OpenAI's and Anthropic's APIs) and passes them " +
			"on to engines. 8080 is usual; 0 opens none. It speaks HTTP/1.1 and HTTP/2, with --tls-cert over TLS. The " +
			"--gateway options that are not about Envoy hold for it, too.",
	},
	{
		key: "proxy.retries", flag: "proxy-retries", hint: "N",
		bind: func(c *Config) value { return integer(&c.Proxy.Retries, 0, maxProxyRetries) },
		help: "How many other engines a request may go to if an engine cannot be connected to, or closes a connection " +
			"before it can have begun to serve the request. An engine's own errors and timeouts are never followed by " +
			"another try, but for those of a pair whose prefill worker cannot be reached.",
	},
	{
		key: "proxy.connect_timeout", flag: "proxy-connect-timeout", hint: "DURATION",
		bind: func(c *Config) value { return duration.of(&c.Proxy.ConnectTimeout) },
		help: "How long a connection to an engine may take to be made, TLS included.",
	},
	{
		key: "proxy.first_byte_timeout", flag: "proxy-first-byte-timeout", hint: "DURATION",
		bind: func(c *Config) value { return delay.of(&c.Proxy.FirstByteTimeout) },
		help: "How long an engine may take to begin its answer. Then the client gets 504, and no other engine is tried. 0 " +
			"sets no limit: answers that are not streamed begin at their end.",
	},
	{
		key: "proxy.keepalive", flag: "proxy-keepalive", hint: "DURATION",
		bind: func(c *Config) value { return delay.of(&c.Proxy.Keepalive) },
		help: "After so much silence of an engine that streams events its client gets a comment (an Anthropic client gets " +
			"a ping), so that a load balancer between them does not close the connection. 0 sends none.",
	},
	{
		key: "proxy.trust", flag: "proxy-trust", hint: "NETWORK", repeats: true,
		bind: func(c *Config) value { return list(&c.Proxy.Trust, network) },
		help: "A network of load balancers, such as 10.0.0.0/8, whose X-Forwarded headers are passed on to engines. Those " +
			"of others are replaced. It may be given several times.",
	},
	{
		key: "proxy.access_log", flag: "proxy-access-log",
		bind: func(c *Config) value { return boolean(&c.Proxy.AccessLog) },
		help: "A line is logged for each request through the proxy. It has nothing of what the request says.",
	},
}

// network reads a network, or one address.
func network(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a network such as 10.0.0.0/8", s)
	}
	return p.Masked(), nil
}

// enginePath reads a further path of engines.
func enginePath(s string) (string, error) { return s, routes.Check(s) }
