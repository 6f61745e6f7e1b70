package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/httpapi"
)

// hostsOf returns the names under which a listener may be addressed; nil: any.
func hostsOf(conf config.Config, l *listener) *access.Hosts {
	switch loopback := access.IsLoopback(l.socket.Addr()); {
	case l.onSocket():
		return nil // browsers cannot reach a unix socket
	case l.tokens && !loopback && len(conf.Access.AllowedHosts) == 0:
		return nil // a page under a foreign name has no token, and a proxy may pass on any name
	}
	var own []string
	if a, err := netip.ParseAddr(conf.Server.Host()); err != nil || !a.IsUnspecified() {
		own = append(own, conf.Server.Host())
	}
	if name, err := os.Hostname(); err == nil {
		own = append(own, name)
	}
	if u, err := url.Parse(conf.Server.AdvertiseURL); err == nil && u.Host != "" {
		own = append(own, u.Host)
	}
	return access.NewHosts(conf.Access.AllowedHosts, l.socket.Addr(), l.secure.Presents, own...)
}

// partOf returns which routes of its contract a listener has.
func partOf(conf config.Config, contract string) httpapi.Part {
	switch {
	case contract == adminContract:
		return httpapi.OperatorsRoutes
	case contract == debugContract || conf.Server.AdminListen == "":
		return httpapi.AllRoutes
	}
	return httpapi.CallersRoutes
}

// tokenCommand is the subcommand that creates tokens.
const tokenCommand = "token"

const tokenUsage = `Usage: select-service token new --name NAME --roles ROLE,... [--tenant TENANT] [--model MODEL]

Writes a new token, which is kept nowhere, and below it its entry for the list
tokens of --tokens-file. Roles: read, call (includes read), operate (includes
both), peer, metrics. With a tenant or a model its caller sees and books only
what belongs to that.
`

// newToken executes "token new".
func newToken(args []string, stdout io.Writer) error {
	if len(args) == 1 && (args[0] == "-h" || args[0] == "--help") {
		args = []string{"new", args[0]}
	}
	if len(args) == 0 || args[0] != "new" {
		return &config.InvalidError{Faults: []error{errors.New("want: token new --name NAME --roles ROLES")}}
	}
	var g access.Grant
	flags := flag.NewFlagSet("token new", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&g.Name, "name", "", "")
	roles := flags.String("roles", "", "")
	flags.StringVar(&g.Tenant, "tenant", "", "")
	flags.StringVar(&g.Model, "model", "", "")
	err := flags.Parse(args[1:])
	if errors.Is(err, flag.ErrHelp) {
		_, err = io.WriteString(stdout, tokenUsage)
		return err
	}
	var faults []error
	switch {
	case err != nil:
		faults = append(faults, err)
	case flags.NArg() > 0:
		faults = append(faults, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	case g.Name == "":
		faults = append(faults, errors.New("--name is missing"))
	}
	if g.Roles, err = access.ParseRoles(strings.Split(*roles, ",")); err != nil {
		faults = append(faults, fmt.Errorf("--roles: %w", err))
	}
	token, entry := access.NewToken(), ""
	if len(faults) == 0 {
		if entry, err = g.Entry(token); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 {
		return &config.InvalidError{Faults: faults}
	}
	_, err = fmt.Fprintf(stdout, "%s\n%s", token, entry)
	return err
}
