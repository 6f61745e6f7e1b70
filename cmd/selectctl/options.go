package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/pkg/client"
)

// defaultURL is where a service listens that was started without options.
const defaultURL = "http://127.0.0.1:8092"

// target is a service and how to reach it.
type target struct {
	URL       string `yaml:"url"` // http, https or unix
	TokenFile string `yaml:"token_file"`
	CA        string `yaml:"ca"`
	Cert      string `yaml:"cert"`
	Key       string `yaml:"key"`
}

// options are those of every command.
type options struct {
	target

	context string
	format  string
}

func (o *options) register(flags *pflag.FlagSet) {
	flags.StringVar(&o.URL, "url", "", "the service: http://…, https://… or unix:///path")
	flags.StringVar(&o.TokenFile, "token-file", "", "file with the token to show")
	flags.StringVar(&o.CA, "ca", "", "PEM file with the authorities of the service's certificate")
	flags.StringVar(&o.Cert, "cert", "", "PEM file with the certificate to show")
	flags.StringVar(&o.Key, "key", "", "PEM file with its key")
	flags.StringVar(&o.context, "context", "", "name of a service in ~/.config/selectctl/config.yaml")
	flags.StringVarP(&o.format, "output", "o", "table", "table, wide, json, yaml or name")
}

// contexts is the file of services.
type contexts struct {
	Current  string            `yaml:"current_context"`
	Contexts map[string]target `yaml:"contexts"`
}

// check checks the options that all commands have.
func (o *options) check() error {
	if !slices.Contains([]string{"table", "wide", "json", "yaml", "name"}, o.format) {
		return usageError{fmt.Errorf("output %q is not table, wide, json, yaml or name", o.format)}
	}
	return nil
}

// connect completes the options from the environment and the file of contexts, and makes the
// client. Nothing is sent yet.
func (a *app) connect(*cobra.Command) error {
	o := &a.options
	if o.URL == "" && o.context == "" {
		o.URL = os.Getenv("SELECT_SERVICE_URL")
	}
	if o.URL == "" || o.context != "" {
		if err := o.readContext(); err != nil {
			return err
		}
	}
	o.URL = cmp.Or(o.URL, defaultURL)
	once := client.DefaultRetry() // an operator wants to see the first error
	once.Overload.Attempts, once.Connection.Attempts = 1, 1
	base, opt := o.URL, client.Options{
		Credentials: client.Credentials{CA: o.CA, Cert: o.Cert, Key: o.Key, TokenFile: o.TokenFile},
		Retry:       &once,
	}
	if socket, ok := strings.CutPrefix(o.URL, "unix://"); ok {
		base = "http://localhost"
		opt.HTTP = &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
		}}
	}
	service, err := client.New(base, opt)
	if err != nil {
		return usageError{err}
	}
	a.service = service
	return nil
}

// readContext takes what the command line leaves out from the chosen context.
func (o *options) readContext() error {
	dir, err := os.UserConfigDir()
	if err != nil {
		if o.context == "" {
			return nil // there is no file to look at
		}
		return fmt.Errorf("look for contexts: %w", err)
	}
	name := filepath.Join(dir, "selectctl", "config.yaml")
	text, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && o.context == "":
		return nil
	case err != nil:
		return fmt.Errorf("read contexts: %w", err)
	}
	var file contexts
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	chosen := cmp.Or(o.context, file.Current)
	if chosen == "" {
		return nil
	}
	c, ok := file.Contexts[chosen]
	if !ok {
		return usageError{fmt.Errorf("%s has no context %q", name, chosen)}
	}
	o.URL = cmp.Or(o.URL, c.URL)
	o.TokenFile, o.CA = cmp.Or(o.TokenFile, c.TokenFile), cmp.Or(o.CA, c.CA)
	o.Cert, o.Key = cmp.Or(o.Cert, c.Cert), cmp.Or(o.Key, c.Key)
	return nil
}

// release is set by the build (-ldflags "-X main.release=…").
var release string

// version is the release, else that of the module.
func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
