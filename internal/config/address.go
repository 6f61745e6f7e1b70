package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/select-service/select-service/pkg/catalog"
)

const (
	unixScheme = "unix://"
	// maxSocketPath is the longest path of a unix socket in bytes (sun_path of Linux,
	// less its end).
	maxSocketPath = 107
)

// listenAt is a list of where to listen: at most one IP address, with or without
// brackets, or host name, and any number of unix sockets.
func listenAt(field *[]string) value {
	v := separated(field, ",", listenAddress)
	v.parse = checked(v.parse, func(items []string) error {
		hosts := 0
		for _, item := range items {
			if !strings.HasPrefix(item, unixScheme) {
				hosts++
			}
		}
		switch {
		case len(items) == 0:
			return errors.New("needs an IP address, a host name or unix:///path")
		case hosts > 1:
			return fmt.Errorf("%s: at most one may be an address; the others are unix:///path", strings.Join(items, ","))
		}
		return nil
	})
	v.render = func(items []string) any {
		if len(items) == 1 {
			return items[0]
		}
		return items
	}
	return v
}

func listenAddress(s string) (string, error) {
	if path, ok := strings.CutPrefix(s, unixScheme); ok {
		switch {
		case !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" || strings.ContainsRune(path, 0):
			return "", fmt.Errorf("%q: a unix socket has an absolute path, as in unix:///run/select-service.sock", s)
		case len(path) > maxSocketPath:
			return "", fmt.Errorf("%q: the path of a unix socket has at most %d bytes", s, maxSocketPath)
		}
		return s, nil
	}
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") {
		s = strings.TrimSuffix(inner, "]")
	}
	if _, err := netip.ParseAddr(s); err == nil || isHostName(s) {
		return s, nil
	}
	return "", fmt.Errorf("%q is neither an IP address nor a host name (the port has its own flag)", s)
}

// hostPort is the address of a listener, host:port; empty is none.
func hostPort(field *string) value {
	return checkedText(field, func(s string) (string, error) {
		name, port, err := net.SplitHostPort(s)
		if err != nil {
			return "", fmt.Errorf("%q is not HOST:PORT, such as 127.0.0.1:6060", s)
		}
		if _, err := parseInteger[uint16](port, 0, math.MaxUint16); err != nil {
			return "", fmt.Errorf("%q: port %w", s, err)
		}
		if _, err := netip.ParseAddr(name); err != nil && !isHostName(name) {
			return "", fmt.Errorf("%q: %q is neither an IP address nor a host name", s, name)
		}
		return s, nil
	})
}

func isHostName(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-._", r)
	}) < 0
}

var errSyncPortZero = errors.New("replica sync port must be greater than zero")

// replicaPort is a port. 0 is the internal value for "not set", so it cannot be given.
func replicaPort(field *uint16) value {
	return typed[uint16]{
		field: field,
		parse: func(text string) (uint16, error) {
			port, err := parseInteger[uint16](text, 0, math.MaxUint16)
			if err == nil && port == 0 {
				err = errSyncPortZero
			}
			return port, err
		},
		render: orNil[uint16],
	}
}

// endpoint is a ZMQ endpoint that further (nil: none) also accepts; empty is none.
func endpoint(field *string, further func(catalog.Endpoint) error) value {
	return checkedText(field, func(s string) (string, error) {
		e, err := catalog.ParseEndpoint(s)
		if err == nil && further != nil {
			err = further(e)
		}
		return s, err
	})
}

// bindable refuses port 0: peers could not know the port that the system picks.
func bindable(e catalog.Endpoint) error {
	if e.Scheme == "tcp" && e.Port == 0 {
		return errSyncPortZero
	}
	return nil
}

// httpBase is the base URL of this service, empty for the default.
func httpBase(field *string) value { return checkedText(field, httpURL) }

// page is the path below which the operators' page is shown, see Server.UI. In texts "/" is on, and none is off.
func page(field *string) value {
	return typed[string]{
		field: field,
		parse: func(s string) (string, error) {
			if on, err := parseBool(s); err == nil {
				return map[bool]string{true: "/"}[on], nil
			}
			u, err := url.Parse(s)
			cut := strings.TrimSuffix(s, "/")
			if err != nil || u.EscapedPath() != s || u.Path != s || cut != "" && (cut[0] != '/' || path.Clean(cut) != cut) {
				return "", fmt.Errorf("%q is neither on nor off, nor a path such as /select-service", s)
			}
			return cmp.Or(cut, "/"), nil
		},
		render: func(path string) any {
			if path == "/" || path == "" {
				return path == "/"
			}
			return path
		},
	}
}

// httpURL checks the base URL of a peer and cuts its trailing slash.
func httpURL(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "", fmt.Errorf("invalid URL `%s`: %w", s, err)
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("invalid URL `%s`: want http://host:port", s)
	case u.Hostname() == "":
		return "", fmt.Errorf("invalid URL `%s`: missing host", s)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.User != nil:
		return "", fmt.Errorf("invalid URL `%s`: only scheme, host, port and path may be given", s)
	}
	if port := u.Port(); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return "", fmt.Errorf("invalid URL `%s`: port is not in [0, 65535]", s)
		}
	}
	return strings.TrimRight(s, "/"), nil
}

// endpointRule checks a rule for ZMQ endpoints.
func endpointRule(s string) (string, error) {
	_, err := catalog.ParseEndpointRule(s)
	return s, err
}

// replicaEndpoint checks the ZMQ endpoint of a replica.
func replicaEndpoint(s string) (string, error) {
	e, err := catalog.ParseEndpoint(s)
	if err != nil {
		return "", fmt.Errorf("invalid replica peer endpoint `%s`: %w", s, err)
	}
	if e.Wildcard || strings.ContainsAny(s, " \t") {
		return "", fmt.Errorf("invalid replica peer endpoint `%s`: its host cannot be connected to", s)
	}
	return s, nil
}

// hostName is a name or an address, without port, or "*".
func hostName(text string) (string, error) {
	name := strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	if _, err := netip.ParseAddr(name); err == nil || !strings.ContainsAny(name, ":/ ") {
		return text, nil
	}
	return "", fmt.Errorf("%q is not a host name or an IP address without a port", text)
}
