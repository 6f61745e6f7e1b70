package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/select-service/select-service/internal/admission"
)

const envConfig = "SELECT_SERVICE_CONFIG"

// Load reads the configuration from the command line (without the program's
// name), the environment and the files that they name. It returns an
// *InvalidError with every fault of every source, or a valid configuration.
// With the actions Help and Version nothing but the command line is looked at.
// The subcommand "slots" reads no file.
func Load(args []string, getenv func(string) string, readFile func(string) ([]byte, error)) (Config, error) {
	cmd, args := commandOf(args)
	line := cmd.parseArgs(args)
	conf := cmd.defaults()
	conf.Action = line.action
	if line.action == Help || line.action == Version {
		return conf, nil
	}
	l := loader{
		command:  cmd,
		conf:     conf,
		source:   make(map[string]string),
		bad:      make(map[string]bool),
		faults:   line.faults,
		readFile: readFile,
	}
	if cmd.file {
		l.applyFile(configPath(line, getenv))
	}
	l.applyEnvironment(getenv)
	l.applyFlags(line.given)
	l.readPolicy()
	l.checkTogether()
	l.warnOfQueue()
	l.warnOfContract()
	if err := invalid(l.faults); err != nil {
		return Config{}, err
	}
	return l.conf, nil
}

// loader gathers values, weakest source first, and the faults of all sources.
type loader struct {
	command  *command
	conf     Config
	source   map[string]string // key → the strongest name that gave it a text
	bad      map[string]bool   // keys with a bad text from any source
	faults   []error
	readFile func(string) ([]byte, error)
}

// apply sets the option from one source; name is what a fault calls it.
func (l *loader) apply(o option, name, text string) {
	if text == "" {
		return
	}
	l.source[o.key] = name
	if err := o.bind(&l.conf).set(text); err != nil {
		l.faults = append(l.faults, named(name, err)...)
		l.bad[o.key] = true
		return
	}
	switch {
	case o.deprecated != "":
		l.note("%s is deprecated, set %s", name, o.deprecated)
	case o.inert:
		l.note("%s has no effect in this service", name)
	}
}

// verify checks a text that a stronger name has already overruled.
func (l *loader) verify(o option, name, text string) {
	if text == "" {
		return
	}
	scratch := l.command.defaults()
	if err := o.bind(&scratch).set(text); err != nil {
		l.faults = append(l.faults, named(name, err)...)
	}
}

func (l *loader) note(format string, args ...any) {
	l.conf.notes = append(l.conf.notes, fmt.Sprintf(format, args...))
}

func (l *loader) applyEnvironment(getenv func(string) string) {
	for _, o := range l.command.options {
		set := l.apply
		for _, name := range o.env {
			text := getenv(name)
			if isServiceLink(name, text) {
				continue
			}
			set(o, name, text)
			if text != "" {
				set = l.verify // the first name counts, the others must still be right
			}
		}
	}
}

// isServiceLink recognises what Kubernetes puts into every pod of a namespace
// that has a Service called "select-service": SELECT_SERVICE_PORT=tcp://10.0.0.1:8092,
// or "select-service-slots" likewise. Nobody configured that, so it is not a bad
// port.
func isServiceLink(name, text string) bool {
	return strings.HasSuffix(name, "_PORT") && strings.HasPrefix(text, "tcp://")
}

func (l *loader) applyFlags(given []givenFlag) {
	for _, g := range given {
		l.apply(g.option, "--"+g.option.flag, g.text)
	}
}

// readPolicy reads the policy file at start: a bad one must not wait for the
// first request (decision D13).
func (l *loader) readPolicy() {
	path := l.conf.Queue.PolicyFile
	if path == "" {
		return
	}
	name := l.source[keyPolicy]
	content, err := l.readFile(path)
	if err != nil {
		l.faults = append(l.faults, fmt.Errorf("%s: read policy file: %w", name, err))
		return
	}
	policy, err := admission.ParsePolicy(content)
	if err != nil {
		l.faults = append(l.faults, named(name+": policy file "+path, err)...)
		return
	}
	l.conf.Queue.Policy = policy
}

// checkTogether looks at settings that need one another. A bad port is not a
// missing one, and bad peers need a port like good ones.
func (l *loader) checkTogether() {
	conflicts := l.conf.conflicts()
	if l.bad[keyPeers] && len(l.conf.Replicas.SyncPeers) == 0 && l.conf.Replicas.Publish() == "" {
		conflicts = append(conflicts, conflict{keyPeers, []string{keySyncPort, keyBind}, l.conf.peersUnbound()})
	}
	for _, c := range conflicts {
		if slices.ContainsFunc(c.other, func(key string) bool { return l.bad[key] }) {
			continue
		}
		err := c.err
		if name := l.source[c.key]; !strings.HasPrefix(err.Error(), name+" ") { // else the text names it
			err = fmt.Errorf("%s: %w", name, err)
		}
		l.faults = append(l.faults, err)
	}
}
