package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/pkg/client"
)

// scopeFlags limit a command to a model, a routing group or both.
type scopeFlags struct{ model, group string }

func (s *scopeFlags) register(flags *pflag.FlagSet) {
	flags.StringVarP(&s.model, "model", "m", "", "model (the default: all)")
	flags.StringVarP(&s.group, "group", "g", "", "routing group (the default: all)")
}

func (s *scopeFlags) scope() (sc client.Scope) {
	if s.model != "" {
		sc.Model = &s.model
	}
	if s.group != "" {
		sc.RoutingGroup = &s.group
	}
	return sc
}

func (a *app) workers() *cobra.Command {
	list := a.listWorkers()
	cmd := &cobra.Command{Use: "workers", Aliases: []string{"worker", "w"}, Short: "list, add, change and remove workers; alone it lists them", RunE: list.RunE}
	cmd.Flags().AddFlagSet(list.Flags())
	cmd.AddCommand(list, a.getWorker(), a.describeWorker(), a.addWorker(), a.drainWorker(), a.undrainWorker(), a.removeWorkers(), a.applyWorkers())
	return cmd
}

func (a *app) listWorkers() *cobra.Command {
	var scope scopeFlags
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "all workers, with their state",
		Example: "  selectctl workers list -m llama\n  selectctl workers list -o name\n  selectctl workers list --watch",
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := a.service.Workers(cmd.Context(), scope.scope())
			if err != nil {
				return err
			}
			return a.show(all, workerTable(all))
		},
	}
	scope.register(cmd.Flags())
	return a.watched(cmd)
}

func workerTable(all []client.Worker) *table {
	t := &table{columns: []string{"WORKER", "MODEL", "GROUP", "STATE", "RANKS", "BLOCK SIZE", "ENDPOINT", "SOURCE", "KV EVENTS", "REASONS"}, wide: 3}
	for _, w := range all {
		size := uint32(1)
		if w.Size != nil {
			size = *w.Size
		}
		events := value(w.KVEventsEndpoint)
		if n := len(w.KVEventsEndpoints); n > 0 {
			events = fmt.Sprintf("of %d ranks", n)
		}
		source := "api"
		if w.Source != nil {
			source = w.Source.Kind
		}
		t.add(w.ID, w.Model, w.RoutingGroup, w.Lifecycle, size, value(w.BlockSize), value(w.Endpoint), source, events, strings.Join(w.NotSchedulableReasons, "; "))
		t.names = append(t.names, fmt.Sprintf("worker/%d", w.ID))
	}
	return t
}

// workerIDs reads arguments such as 7 or worker/7, as -o name writes them.
func workerIDs(args []string) ([]uint64, error) {
	ids := make([]uint64, len(args))
	for i, arg := range args {
		id, err := strconv.ParseUint(strings.TrimPrefix(arg, "worker/"), 10, 64)
		if err != nil {
			return nil, usageError{fmt.Errorf("%q is not the id of a worker", arg)}
		}
		ids[i] = id
	}
	return ids, nil
}

func (a *app) getWorker() *cobra.Command {
	return a.watched(&cobra.Command{
		Use: "get ID", Short: "one worker's whole record", Args: cobra.ExactArgs(1),
		Example: "  selectctl workers get 7 -o yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := workerIDs(args)
			if err != nil {
				return err
			}
			all, err := a.service.Workers(cmd.Context(), client.Scope{})
			if err != nil {
				return err
			}
			i := slices.IndexFunc(all, func(w client.Worker) bool { return w.ID == ids[0] })
			if i < 0 {
				return fmt.Errorf("there is no worker %d; 'selectctl workers list' has those that there are", ids[0])
			}
			return a.show(all[i], workerTable(all[i:i+1]))
		},
	})
}

func (a *app) describeWorker() *cobra.Command {
	return a.watched(&cobra.Command{
		Use: "describe ID", Short: "one worker with its ranks: state, load, cache and event streams", Args: cobra.ExactArgs(1),
		Example: "  selectctl workers describe 7",
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := workerIDs(args)
			if err != nil {
				return err
			}
			f, err := a.service.Fleet(cmd.Context(), client.Scope{}, "")
			if err != nil {
				return err
			}
			f.Rows = slices.DeleteFunc(f.Rows, func(r client.FleetRow) bool { return r.Worker != ids[0] })
			switch {
			case len(f.Rows) > 0:
			case f.Truncated:
				return fmt.Errorf("worker %d is not among the ranks that one answer has room for; 'selectctl workers get %d' has its record", ids[0], ids[0])
			default:
				return fmt.Errorf("worker %d is not registered", ids[0])
			}
			return a.show(f.Rows, rankTable(f.Rows))
		},
	})
}

// rankTable shows ranks. Unknown values are left empty.
func rankTable(rows []client.FleetRow) *table {
	t := &table{columns: []string{"WORKER", "RANK", "STATE", "STREAM", "LAG", "REQUESTS", "BLOCKS", "OF", "PREFILL", "CACHED", "HIT RATE", "ENGINE", "REASON"}, wide: 1}
	for _, r := range rows {
		rate, capacity := "", ""
		if r.HitRate != nil {
			rate = fmt.Sprintf("%.0f %%", 100**r.HitRate)
		}
		if r.TotalBlocks > 0 {
			capacity = fmt.Sprint(r.TotalBlocks)
		}
		t.add(r.Worker, r.DPRank, r.State, r.Stream, r.Lag, r.Requests, r.ActiveBlocks, capacity, r.PrefillTokens, r.CachedBlocks, rate, reportText(r.Reported), r.Reason)
		t.names = append(t.names, fmt.Sprintf("rank/%d/%d", r.Worker, r.DPRank))
	}
	return t
}

// reportText is what an engine says of its requests, "" for nothing.
func reportText(e *client.FleetReported) string {
	if e == nil {
		return ""
	}
	var parts []string
	if e.Running != nil {
		parts = append(parts, fmt.Sprintf("%d running", *e.Running))
	}
	if e.Waiting != nil {
		parts = append(parts, fmt.Sprintf("%d waiting", *e.Waiting))
	}
	if e.Stale {
		parts = append(parts, "too old to count")
	}
	return strings.Join(parts, ", ")
}

func (a *app) addWorker() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "add -f FILE", Short: "register the workers of a file, beside those that there are",
		Long:    "Registers each worker of a YAML or JSON file (- is standard input): one record, a list of records,\nor an object with the list as \"workers\". The members are those of POST /workers. If a record has no\nworker_id, none is registered.",
		Example: "  selectctl workers add -f worker.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			records, err := a.readWorkers(file)
			if err != nil {
				return err
			}
			var added []client.Worker
			for _, w := range records {
				got, err := a.service.PutWorker(cmd.Context(), w)
				if err != nil {
					return fmt.Errorf("worker %d: %w", w.ID, err)
				}
				added = append(added, got)
			}
			return a.show(added, workerTable(added))
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the records")
	_ = cmd.MarkFlagRequired("file") // it is defined above
	return cmd
}

func (a *app) drainWorker() *cobra.Command {
	var within time.Duration
	cmd := &cobra.Command{
		Use: "drain ID", Short: "give a worker no new work; what it has goes on", Args: cobra.ExactArgs(1),
		Long:    "Gives a worker no new work. What it has goes on. A worker that was registered over the API is\nremoved once it is empty, and at the latest after --within; others are their source's to remove.",
		Example: "  selectctl workers drain 7 --within 5m",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeWorker(args, func(id uint64) (client.Worker, error) { return a.service.DrainWorker(cmd.Context(), id, within) })
		},
	}
	cmd.Flags().DurationVar(&within, "within", 0, "remove it then, empty or not; 0: once it is empty")
	return cmd
}

func (a *app) undrainWorker() *cobra.Command {
	return &cobra.Command{
		Use: "undrain ID", Short: "take drain back", Args: cobra.ExactArgs(1),
		Example: "  selectctl workers undrain 7",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeWorker(args, func(id uint64) (client.Worker, error) { return a.service.UndrainWorker(cmd.Context(), id) })
		},
	}
}

// changeWorker changes the worker that the argument names, and shows it.
func (a *app) changeWorker(args []string, change func(id uint64) (client.Worker, error)) error {
	ids, err := workerIDs(args)
	if err != nil {
		return err
	}
	w, err := change(ids[0])
	if err != nil {
		return err
	}
	return a.show(w, workerTable([]client.Worker{w}))
}

func (a *app) removeWorkers() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID…", Short: "remove workers, with their blocks and reservations", Args: cobra.MinimumNArgs(1),
		Example: "  selectctl workers rm 7 8",
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := workerIDs(args)
			if err != nil {
				return err
			}
			for _, id := range ids {
				if err := a.service.DeleteWorker(cmd.Context(), id); err != nil {
					return fmt.Errorf("worker %d: %w", id, err)
				}
				a.line("worker/%d removed", id)
			}
			return nil
		},
	}
}

func (a *app) applyWorkers() *cobra.Command {
	var (
		file   string
		dryRun bool
		scope  scopeFlags
	)
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "make the workers those of a file: add, change and remove",
		Long:    "Makes the workers of the model and routing group (of all, without these options) those of\nthe file: PUT /workers. Workers that the file does not have are removed. If a record has\nno worker_id, nothing is changed.",
		Example: "  selectctl workers apply -f workers.yaml -m llama --dry-run\n  selectctl workers apply -f workers.yaml -m llama",
		RunE: func(cmd *cobra.Command, _ []string) error {
			records, err := a.readWorkers(file)
			if err != nil {
				return err
			}
			apply := a.service.ReplaceWorkers
			if dryRun {
				apply = a.service.CompareWorkers
			}
			diff, err := apply(cmd.Context(), scope.scope(), records)
			if err != nil {
				return err
			}
			t := &table{columns: []string{"WORKER", "CHANGE"}}
			for _, c := range []struct {
				ids  []uint64
				what string
			}{{diff.Added, "added"}, {diff.Changed, "changed"}, {diff.Removed, "removed"}} {
				for _, id := range c.ids {
					t.add(id, c.what)
					t.names = append(t.names, fmt.Sprintf("worker/%d", id))
				}
			}
			if a.forPeople() {
				if dryRun {
					fmt.Fprint(a.out, "dry run: ")
				}
				fmt.Fprintf(a.out, "%d added, %d changed, %d removed, %d unchanged\n", len(diff.Added), len(diff.Changed), len(diff.Removed), diff.Unchanged)
				if len(t.rows) == 0 {
					return nil
				}
			}
			return a.show(diff, t)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the records")
	_ = cmd.MarkFlagRequired("file") // it is defined above
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be different")
	scope.register(cmd.Flags())
	return cmd
}

// readFile reads a file, or standard input for "-".
func readFile(name string, in io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(in)
	}
	return os.ReadFile(name)
}

// readWorkers reads records from a YAML or JSON file, or from standard input for "-". Nothing is read of a
// file with a faulty record.
func (a *app) readWorkers(name string) ([]client.Worker, error) {
	text, err := readFile(name, a.in)
	if err != nil {
		return nil, fmt.Errorf("read workers: %w", err)
	}
	if name == "-" {
		name = "standard input"
	}
	list, err := decodeRecords(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	records := make([]client.Worker, len(list))
	for i, record := range list {
		if records[i], err = readWorker(record); err != nil {
			return nil, fmt.Errorf("read %s: record %d: %w", name, i+1, err)
		}
	}
	return records, nil
}

// readWorker reads a record, which must name its worker_id: without this check a record without it would be
// one of worker 0.
func readWorker(record any) (w client.Worker, err error) {
	switch object, ok := record.(map[string]any); {
	case !ok:
		return w, fmt.Errorf("it is %v, want an object with worker_id", record)
	case object["worker_id"] == nil:
		return w, errors.New("it has no worker_id")
	}
	text, err := json.Marshal(record)
	if err != nil {
		return w, err //nolint:wrapcheck // it says what is wrong
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return w, decoder.Decode(&w) //nolint:wrapcheck // it names the member
}

// decodeRecords returns the records of all YAML documents of a text: each is a record, a list of
// records, or an object with such a list as its member workers. A text without any of them is an error,
// because an empty list removes all workers: it has to be written as a list.
func decodeRecords(text []byte) ([]any, error) {
	list, found := []any{}, false
	for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var document any
		if err := documents.Decode(&document); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err //nolint:wrapcheck // it names the line
		}
		if object, ok := document.(map[string]any); ok {
			if workers, ok := object["workers"]; ok && len(object) == 1 {
				document = workers
				if workers == nil {
					return nil, errors.New("workers is empty: write [] if there are to be none")
				}
			} else {
				document = []any{object}
			}
		}
		switch document := document.(type) {
		case nil: // blank lines and comments
		case []any:
			list, found = append(list, document...), true
		default:
			return nil, fmt.Errorf("a document is %v, want records of workers", document)
		}
	}
	if !found {
		return nil, errors.New("it has no records: write [] if there are to be none")
	}
	for i, record := range list {
		list[i] = withTextKeys(record)
	}
	return list, nil
}

// withTextKeys returns a value of YAML with the keys of its objects as texts, as JSON has them: those of
// kv_events_endpoints look like numbers.
func withTextKeys(v any) any {
	switch v := v.(type) {
	case map[any]any:
		object := make(map[string]any, len(v))
		for key, member := range v {
			object[fmt.Sprint(key)] = withTextKeys(member)
		}
		return object
	case map[string]any:
		for key, member := range v {
			v[key] = withTextKeys(member)
		}
	case []any:
		for i, element := range v {
			v[i] = withTextKeys(element)
		}
	}
	return v
}

func (a *app) thresholds() *cobra.Command {
	cmd := &cobra.Command{
		Use: "thresholds", Short: "the busy thresholds of the models",
		Example: "  selectctl thresholds\n  selectctl thresholds set llama --decode-blocks 0.9",
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := a.service.BusyThresholds(cmd.Context())
			if err != nil {
				return err
			}
			return a.show(all, thresholdTable(all))
		},
	}
	cmd.AddCommand(a.setThresholds(), a.unsetThresholds())
	return a.watched(cmd)
}

func thresholdTable(all []client.Thresholds) *table {
	slices.SortFunc(all, func(x, y client.Thresholds) int { return cmp.Compare(x.Model, y.Model) })
	t := &table{columns: []string{"MODEL", "DECODE BLOCKS", "PREFILL TOKENS", "PREFILL FRACTION"}, names: []string{}}
	for _, th := range all {
		t.add(th.Model, value(th.DecodeBlocks), value(th.PrefillTokens), value(th.PrefillFraction))
		t.names = append(t.names, th.Model)
	}
	return t
}

func (a *app) setThresholds() *cobra.Command {
	var (
		decode, fraction float64
		tokens           uint64
	)
	cmd := &cobra.Command{
		Use: "set MODEL", Short: "set a model's busy thresholds", Args: cobra.ExactArgs(1),
		Example: "  selectctl thresholds set llama --decode-blocks 0.9",
		RunE: func(cmd *cobra.Command, args []string) error {
			th := client.Thresholds{Model: args[0]}
			if cmd.Flags().Changed("decode-blocks") {
				th.DecodeBlocks = &decode
			}
			if cmd.Flags().Changed("prefill-tokens") {
				th.PrefillTokens = &tokens
			}
			if cmd.Flags().Changed("prefill-fraction") {
				th.PrefillFraction = &fraction
			}
			if th == (client.Thresholds{Model: args[0]}) {
				return usageError{errors.New("set which? --decode-blocks, --prefill-tokens or --prefill-fraction")}
			}
			got, err := a.service.SetBusyThresholds(cmd.Context(), th)
			if err != nil {
				return err
			}
			return a.show(got, thresholdTable([]client.Thresholds{got}))
		},
	}
	cmd.Flags().Float64Var(&decode, "decode-blocks", 0, "share of a rank's blocks, 0 to 1")
	cmd.Flags().Uint64Var(&tokens, "prefill-tokens", 0, "prompt tokens to compute")
	cmd.Flags().Float64Var(&fraction, "prefill-fraction", 0, "the same, as a multiple of max_num_batched_tokens")
	return cmd
}

func (a *app) unsetThresholds() *cobra.Command {
	return &cobra.Command{
		Use: "unset MODEL", Short: "remove a model's busy thresholds", Args: cobra.ExactArgs(1),
		Example: "  selectctl thresholds unset llama",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.service.UnsetBusyThresholds(cmd.Context(), args[0]); err != nil {
				return err
			}
			a.line("%s has no thresholds", args[0])
			return nil
		},
	}
}

func (a *app) replicas() *cobra.Command {
	return a.watched(&cobra.Command{
		Use: "replicas", Short: "the replicas with which reservations are shared, and whether they agree",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := a.service.Replicas(cmd.Context(), client.Scope{})
			if err != nil {
				return err
			}
			return a.show(r, replicaTable(&r))
		},
	})
}

func replicaTable(r *client.Replicas) *table {
	t := &table{columns: []string{"PEER", "CONNECTED", "PROCESS", "LOADS", "THRESHOLDS", "POLICIES", "CLOCK", "VERSION", "URL", "ERROR"}, wide: 3}
	for _, p := range r.Peers {
		t.names = append(t.names, p.Endpoint)
		if len(p.Processes) == 0 {
			t.add(p.Endpoint, p.Connected, "", "", "", "", "", "", "", "")
		}
		for _, x := range p.Processes {
			if x.Absent {
				t.add(p.Endpoint, "gone", x.Process, "", "", "", "", x.Version, x.URL, x.Error) // it has nothing to agree about
				continue
			}
			if x.Read == nil {
				t.add(p.Endpoint, p.Connected, x.Process, "", "", "", "", "", x.URL, x.Error)
				continue
			}
			loads := true
			for _, l := range x.Loads {
				loads = loads && l.Agree
			}
			t.add(p.Endpoint, p.Connected, x.Process, agree(loads), agree(len(x.ThresholdsDiffer) == 0), agree(x.PoliciesAgree),
				fmt.Sprintf("%+.3f s", x.ClockAhead), x.Version, x.URL, x.Error)
		}
	}
	return t
}

// agree says whether something is the same.
func agree(same bool) string {
	if same {
		return "agree"
	}
	return "differ"
}

func (a *app) dump() *cobra.Command {
	return &cobra.Command{
		Use: "dump", Short: "the whole index as JSON, as other replicas read it at their start",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			body, err := a.service.Dump(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = cmp.Or(err, body.Close()) }()
			return writeEscaped(a.out, body, escapeJSON)
		},
	}
}

// errNotReady is a service that cannot serve requests.
var errNotReady = fmt.Errorf("the service is not ready")

func (a *app) status() *cobra.Command {
	return a.watched(&cobra.Command{
		Use: "status", Short: "is the service ready, and which workers are not schedulable (exit code 3: not ready)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ready, err := a.service.Ready(cmd.Context())
			if err != nil {
				return err
			}
			t := workerTable(slices.DeleteFunc(slices.Clone(ready.Workers), func(w client.Worker) bool { return w.Lifecycle == "schedulable" }))
			t.wide = 0
			if a.forPeople() {
				a.line("ready: %t, %d of %d workers schedulable", ready.Ready, ready.SchedulableWorkers, len(ready.Workers))
				if len(t.rows) > 0 {
					err = t.write(a.out, true, a.painted)
				}
			} else {
				err = a.show(ready, t)
			}
			if err == nil && !ready.Ready {
				err = errNotReady
			}
			return err
		},
	})
}
