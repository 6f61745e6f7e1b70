// Package settings has what decides choices and may be changed while the service runs: busy thresholds and
// selection policies. A [Store] keeps them, for a process alone or for all replicas of a fleet.
package settings

import "github.com/select-service/select-service/internal/selection/overload"

// Settings are the settings of all models.
type Settings struct {
	Thresholds *overload.Table // busy thresholds
	Policies   []byte          // a section worker_selection of a policy file, as JSON; nil: those of the configuration
}

// Process has the settings that are in force in this process.
type Process struct {
	Thresholds *overload.Table
	// Policies returns the section that is in force, "" for none, and Apply puts another one in force: an error says
	// what is wrong with it, and changes nothing.
	Policies func() string
	Apply    func(section []byte) error
}

// Store keeps the settings. Edit and Version are safe for concurrent use.
type Store interface {
	// Attach gives the store the settings of this process. It is called once, before any other method.
	Attach(here Process)
	// Edit makes a change, which may be called several times, each time with settings as if the times before
	// had not been. behind names the live replicas that have not changed yet. Errors are those of change, and
	// of package contract.
	Edit(change func(*Settings) error) (behind []string, err error)
	// Version returns the version of the fleet's catalog that first had the settings in force, 0: they are the
	// process's own.
	Version() uint64
}

// alone is the Store of a process whose settings are its own.
type alone struct{ here Process }

// NewAlone returns the Store of a process whose settings are its own.
func NewAlone() Store { return new(alone) }

func (a *alone) Attach(here Process) { a.here = here }

func (a *alone) Edit(change func(*Settings) error) (behind []string, err error) {
	was := a.here.Policies()
	now := Settings{Thresholds: a.here.Thresholds, Policies: []byte(was)}
	if err := change(&now); err != nil || string(now.Policies) == was {
		return nil, err
	}
	return nil, a.here.Apply(now.Policies)
}

func (a *alone) Version() uint64 { return 0 }
