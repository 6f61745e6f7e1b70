package config

// command is one of the two that the program knows, with the settings of each.
type command struct {
	head     string // of the help text
	options  []option
	actions  []actionFlag
	file     bool // it reads a configuration file
	defaults func() Config
}

// slotsCommand is the first argument that chooses the slot tracker alone.
const slotsCommand = "slots"

var (
	selection = &command{
		head: helpHead, options: options, actions: actionFlags, file: true, defaults: Default,
	}
	slotTracker = &command{
		head: slotsHelpHead, options: slotsOptions(), actions: slotsActions(), defaults: DefaultSlots,
	}
)

// commandOf splits the subcommand off the arguments.
func commandOf(args []string) (*command, []string) {
	if len(args) > 0 && args[0] == slotsCommand {
		return slotTracker, args[1:]
	}
	return selection, args
}

// slotsOptions are the options that the slot tracker alone has, with its flags.
func slotsOptions() []option {
	var kept []option
	for _, o := range options {
		if o.slotsFlag == "" && !o.slotsEnv {
			continue
		}
		o.flag = o.slotsFlag
		if o.slotsHelp != "" {
			o.help = o.slotsHelp
		}
		kept = append(kept, o)
	}
	return kept
}

// slotsActions are those that the slot tracker's clients know.
func slotsActions() []actionFlag {
	var kept []actionFlag
	for _, a := range actionFlags {
		if a.action == Help || a.action == Version {
			kept = append(kept, a)
		}
	}
	return kept
}
