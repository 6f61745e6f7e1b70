package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
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

	"github.com/select-service/select-service/pkg/client"
)

// promptFlags describe a prompt: its tokens, or what the service makes tokens of.
type promptFlags struct {
	model, group, tokens, lora, salt string
	text, message, file              string
}

func (p *promptFlags) register(flags *pflag.FlagSet) {
	flags.StringVarP(&p.model, "model", "m", "", "model (the default: default)")
	flags.StringVarP(&p.group, "group", "g", "", "routing group (the default: default)")
	flags.StringVarP(&p.tokens, "tokens", "t", "", "token ids with commas or spaces; @FILE or - (standard input) for many")
	flags.StringVar(&p.text, "text", "", "text of the prompt as a completion has it; the service's tokenizer reads it")
	flags.StringVar(&p.message, "message", "", "text of the prompt as a user's message of a chat")
	flags.StringVar(&p.file, "file", "", "request as clients send it, in JSON, or else text as for --text; - is standard input")
	flags.StringVar(&p.lora, "lora", "", "LoRA adapter of the prompt")
	flags.StringVar(&p.salt, "salt", "", "cache salt of the prompt")
}

// prompt reads the tokens, or asks the service to make them. If the request names a model, as it would through
// the gateway, that model becomes p's.
func (p *promptFlags) prompt(ctx context.Context, a *app) (client.Prompt, error) {
	given := 0
	for _, flag := range [...]string{p.tokens, p.text, p.message, p.file} {
		if flag != "" {
			given++
		}
	}
	switch {
	case given == 0:
		return client.Prompt{}, usageError{errors.New("which prompt? --tokens 1,2,3, --tokens @FILE, --text TEXT, --message TEXT or --file FILE")}
	case given > 1:
		return client.Prompt{}, usageError{errors.New("one prompt at a time: --tokens, --text, --message or --file")}
	case p.tokens != "":
		return p.read(a.in)
	}
	request, err := p.request(a.in)
	if err != nil {
		return client.Prompt{}, err
	}
	got, err := a.service.Tokenize(ctx, client.TokenizeRequest{Model: p.model, RoutingGroup: p.group, Request: request})
	if err != nil {
		return client.Prompt{}, err
	}
	p.model, p.group = got.Model, got.RoutingGroup
	prompt := got.Prompt()
	prompt.LoRA, prompt.CacheSalt = cmp.Or(p.lora, prompt.LoRA), cmp.Or(p.salt, prompt.CacheSalt)
	return prompt, nil
}

// request returns the body of a request with the prompt's text.
func (p *promptFlags) request(in io.Reader) (json.RawMessage, error) {
	text := p.text
	switch {
	case p.message != "":
		return json.Marshal(map[string]any{"messages": []any{map[string]string{"role": "user", "content": p.message}}})
	case p.file != "":
		content, err := readFile(p.file, in)
		if err != nil {
			return nil, fmt.Errorf("read a prompt: %w", err)
		}
		if trimmed := bytes.TrimSpace(content); len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
			return trimmed, nil
		}
		text = string(content)
	}
	return json.Marshal(map[string]string{"prompt": text})
}

// read reads the tokens.
func (p *promptFlags) read(in io.Reader) (client.Prompt, error) {
	var source io.Reader = strings.NewReader(p.tokens)
	switch name, isFile := strings.CutPrefix(p.tokens, "@"); {
	case p.tokens == "-":
		source = in
	case isFile:
		f, err := os.Open(name)
		if err != nil {
			return client.Prompt{}, fmt.Errorf("read tokens: %w", err)
		}
		defer f.Close()
		source = f
	}
	prompt := client.Prompt{TokenIDs: []uint32{}, LoRA: p.lora, CacheSalt: p.salt}
	words := bufio.NewScanner(source)
	words.Buffer(make([]byte, 0, 4096), 1<<20)
	words.Split(splitTokens)
	for words.Scan() {
		id, err := strconv.ParseUint(words.Text(), 10, 32)
		if err != nil {
			return client.Prompt{}, usageError{fmt.Errorf("token %d: %q is not a token id", len(prompt.TokenIDs), words.Text())}
		}
		prompt.TokenIDs = append(prompt.TokenIDs, uint32(id))
	}
	if err := words.Err(); err != nil {
		return client.Prompt{}, fmt.Errorf("read tokens: %w", err)
	}
	return prompt, nil
}

// splitTokens splits at spaces, commas and the brackets of a JSON array.
func splitTokens(data []byte, atEOF bool) (advance int, token []byte, err error) {
	isGap := func(b byte) bool { return strings.IndexByte(" \t\r\n,[]", b) >= 0 }
	start := 0
	for start < len(data) && isGap(data[start]) {
		start++
	}
	for i := start; i < len(data); i++ {
		if isGap(data[i]) {
			return i + 1, data[start:i], nil
		}
	}
	if atEOF && start < len(data) {
		return len(data), data[start:], nil
	}
	return start, nil, nil
}

func (a *app) overlap() *cobra.Command {
	var p promptFlags
	cmd := &cobra.Command{
		Use: "overlap --tokens …", Short: "how much of a prompt each rank has cached, in blocks by tier",
		Example: "  selectctl overlap -m llama -t @prompt.txt\n  selectctl overlap -m llama --text 'Once upon a time'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			prompt, err := p.prompt(cmd.Context(), a)
			if err != nil {
				return err
			}
			scores, err := a.service.OverlapScores(cmd.Context(), client.ProjectRequest{Model: p.model, RoutingGroup: p.group, Prompt: prompt})
			if err != nil {
				return err
			}
			t := &table{columns: []string{"WORKER", "RANK", "DEVICE", "HOST", "DISK", "OF", ""}}
			for _, w := range scores.Workers {
				t.add(w.Worker, w.DPRank, w.Device, w.Host, w.Disk, scores.NumBlocks, bar(float64(w.Disk), float64(scores.NumBlocks)))
			}
			return a.show(scores, t)
		},
	}
	p.register(cmd.Flags())
	return cmd
}

// barWidth is the length of a full bar, in characters.
const barWidth = 20

// bar draws part of whole.
func bar(part, whole float64) string {
	if whole <= 0 {
		return ""
	}
	n := int(barWidth*min(1, max(0, part/whole)) + 0.5)
	return strings.Repeat("#", n) + strings.Repeat(".", barWidth-n)
}

func (a *app) explain() *cobra.Command {
	var (
		p  promptFlags
		of client.SessionContext
	)
	cmd := &cobra.Command{
		Use: "explain --tokens …", Short: "which rank a prompt would get and why; nothing is booked",
		Example: "  selectctl explain -m llama -t @prompt.txt\n  selectctl explain -m llama --message 'Hello'\n  selectctl explain --file request.json\n  selectctl explain --file request.json --session research-42",
		RunE: func(cmd *cobra.Command, _ []string) error {
			prompt, err := p.prompt(cmd.Context(), a)
			if err != nil {
				return err
			}
			req := client.SelectRequest{Model: p.model, RoutingGroup: p.group, Prompt: prompt}
			switch {
			case of.ID != "":
				req.SessionContext = &of
			case of.Parent != "":
				return usageError{errors.New("--parent is that of a --session")}
			}
			e, err := a.service.Explain(cmd.Context(), req)
			if err != nil {
				return err
			}
			if a.forPeople() {
				a.line("%s", verdict(&e))
				if text := whereSession(&e); text != "" {
					a.line("%s", text)
				}
			}
			return a.show(e, explanationTable(&e))
		},
	}
	p.register(cmd.Flags())
	cmd.Flags().StringVar(&of.ID, "session", "", "session that the request is of")
	cmd.Flags().StringVar(&of.Parent, "parent", "", "session that has started it")
	return cmd
}

// isChosen reports whether a candidate is the one that was chosen.
func isChosen(e *client.Explanation, c *client.ExplainedRank) bool {
	return e.Chosen != nil && c.Worker == e.Chosen.Worker && c.DPRank == e.Chosen.DPRank
}

// verdict says in a sentence what was chosen.
func verdict(e *client.Explanation) string {
	if e.Chosen == nil {
		return fmt.Sprintf("no rank: %s (policy %s, %d tokens)", e.Refusal, e.Policy, e.ISLTokens)
	}
	var own, next *client.ExplainedRank // next: the cheapest of the others
	for i := range e.Candidates {
		switch c := &e.Candidates[i]; {
		case isChosen(e, c):
			own = c
		case next == nil || c.Cost < next.Cost:
			next = c
		}
	}
	margin := ""
	switch {
	case own == nil || next == nil:
	case own.Cost <= next.Cost:
		margin = fmt.Sprintf(", %.4g %s ahead of the next", next.Cost-own.Cost, own.Unit)
	default: // a temperature, or a warm-up
		margin = fmt.Sprintf(", though worker %d rank %d costs %.4g %s less", next.Worker, next.DPRank, own.Cost-next.Cost, own.Unit)
	}
	return fmt.Sprintf("worker %d rank %d%s (policy %s, %d tokens)", e.Chosen.Worker, e.Chosen.DPRank, margin, e.Policy, e.ISLTokens)
}

// whereSession says what the request's session has to do with the choice, "" without one.
func whereSession(e *client.Explanation) string {
	if e.Session == "" {
		return ""
	}
	text := "session " + clip(e.Session)
	if e.Group != "" {
		text += ", started by " + clip(e.Group)
	}
	switch {
	case e.Home == nil:
		return text + ": it has no home yet"
	case e.Chosen != nil && e.Chosen.Rank == *e.Home:
		return text + ": it stays at home"
	}
	text += fmt.Sprintf(": its home is worker %d rank %d", e.Home.Worker, e.Home.DPRank)
	if e.MovedBecause != "" {
		text += "; it goes elsewhere: " + e.MovedBecause
	}
	return text
}

// clippedName is how many characters of a session's name are shown.
const clippedName = 40

// clip shortens a name for people.
func clip(name string) string {
	if all := []rune(name); len(all) > clippedName {
		return string(all[:clippedName-1]) + "…"
	}
	return name
}

func explanationTable(e *client.Explanation) *table {
	t := &table{columns: []string{"", "WORKER", "RANK", "COST", "UNIT", "CACHED", "UNCACHED", "REQUESTS", "WAIT", "PREFILL", "DELAY", "DECODE", "ANSWER", "SPEED"}, wide: 6}
	candidates := slices.Clone(e.Candidates)
	slices.SortStableFunc(candidates, func(x, y client.ExplainedRank) int { return cmp.Compare(x.Cost, y.Cost) })
	for i := range candidates {
		c, mark := &candidates[i], " "
		if isChosen(e, c) {
			mark = "*"
		}
		cached := c.CachedTokens.Device + c.CachedTokens.Host + c.CachedTokens.Disk
		t.add(mark, c.Worker, c.DPRank, fmt.Sprintf("%.4g", c.Cost), c.Unit, cached, c.UncachedTokens, c.ActiveRequests,
			fmt.Sprintf("%.4g", c.Terms.Wait), fmt.Sprintf("%.4g", c.Terms.Prefill), fmt.Sprintf("%.4g", c.Terms.Delay), fmt.Sprintf("%.4g", c.Terms.Decode), fmt.Sprintf("%.4g", c.Terms.Answer), fmt.Sprintf("%.3g", c.SpeedFactor))
	}
	for _, x := range e.Excluded {
		t.add("x", x.Worker, x.DPRank, x.Reason)
	}
	return t
}

func (a *app) decisions() *cobra.Command {
	var (
		scope  scopeFlags
		follow bool
	)
	cmd := &cobra.Command{
		Use: "decisions", Short: "recent choices, the newest last, with predicted and observed time to first token",
		Example: "  selectctl decisions -m llama\n  selectctl decisions -f",
		RunE: func(cmd *cobra.Command, _ []string) error {
			since := time.Time{}
			list := a.service.Decisions
			if a.forPeople() {
				list = a.service.DecisionOutlines // all that the table shows
			}
			show := func() error {
				all, err := list(cmd.Context(), scope.scope(), 0)
				if err != nil {
					return err
				}
				slices.SortStableFunc(all, func(x, y client.Decision) int { return x.Time.Compare(y.Time) })
				fresh := slices.DeleteFunc(all, func(d client.Decision) bool { return !d.Time.After(since) })
				first := since.IsZero()
				if len(fresh) > 0 {
					since = fresh[len(fresh)-1].Time
				}
				if !first && len(fresh) == 0 {
					return nil
				}
				t := decisionTable(fresh)
				t.continues = !first
				return a.show(fresh, t)
			}
			for {
				err := show()
				if err == nil && follow {
					err = sleep(cmd.Context(), time.Second)
				}
				if follow && cmd.Context().Err() != nil {
					return nil //nolint:nilerr // interrupted: the way to end it
				}
				if err != nil || !follow {
					return err
				}
			}
		},
	}
	scope.register(cmd.Flags())
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with the choices that come")
	return cmd
}

func decisionTable(all []client.Decision) *table {
	t := &table{columns: []string{"TIME", "MODEL", "WORKER", "RANK", "TOKENS", "CACHED BLOCKS", "FOREGONE", "PREDICTED", "TTFT", "STATE", "ID", "POLICY"}, wide: 2}
	for i := range all {
		d := &all[i]
		worker, rank := "", ""
		if d.Chosen != nil {
			worker, rank = fmt.Sprint(d.Chosen.Worker), fmt.Sprint(d.Chosen.DPRank)
		}
		ttft := ""
		if d.Outcome.TTFT != nil {
			ttft = fmt.Sprintf("%.3f s", *d.Outcome.TTFT)
		}
		t.add(d.Time.Local().Format("15:04:05.000"), d.Model, worker, rank, d.ISLTokens, d.CachedBlocks, d.CachedBlocksForegone,
			fmt.Sprintf("%.3f s", d.PredictedTTFT), ttft, d.Outcome.State, cmp.Or(d.Reservation, d.ID), d.Policy)
	}
	return t
}

func (a *app) top() *cobra.Command {
	var (
		scope scopeFlags
		every time.Duration
		once  bool
	)
	cmd := &cobra.Command{
		Use: "top", Short: "the load of every rank, renewed each second, the busiest first; or the greatest consumers of engine seconds",
		Example: "  selectctl top -m llama\n  selectctl top --once\n  selectctl top tenants",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.live(cmd.Context(), once, every, func() error {
				loads, err := a.service.Loads(cmd.Context(), scope.scope())
				if err != nil {
					return err
				}
				return a.show(loads, loadTable(loads))
			})
		},
	}
	cmd.AddCommand(a.consumers(byTenant), a.consumers(byProgram))
	scope.register(cmd.Flags())
	cmd.Flags().DurationVar(&every, "every", time.Second, "how often")
	cmd.Flags().BoolVar(&once, "once", false, "show it once; so it is if the output is no terminal")
	return cmd
}

// live shows something once, or in a terminal again and again.
func (a *app) live(ctx context.Context, once bool, every time.Duration, show func() error) error {
	if once || !a.terminal {
		return show()
	}
	return a.repeat(ctx, every, show)
}

func loadTable(all []client.ScopeLoads) *table {
	t := &table{columns: []string{"MODEL", "GROUP", "WORKER", "RANK", "REQUESTS", "BLOCKS", "PREFILL TOKENS", ""}}
	for _, s := range all {
		most := uint64(1)
		rows := slices.Clone(s.Loads)
		for _, l := range rows {
			most = max(most, l.DecodeBlocks)
		}
		slices.SortStableFunc(rows, func(x, y client.RankLoad) int {
			return cmp.Or(cmp.Compare(y.PrefillTokens, x.PrefillTokens), cmp.Compare(y.DecodeBlocks, x.DecodeBlocks))
		})
		for _, l := range rows {
			t.add(s.Model, s.RoutingGroup, l.Worker, l.DPRank, l.ActiveRequests, l.DecodeBlocks, l.PrefillTokens, bar(float64(l.DecodeBlocks), float64(most)))
		}
		if s.PendingCount > 0 {
			t.add(s.Model, s.RoutingGroup, "waiting", "", s.PendingCount, "", s.PendingISLTokens, "")
		}
	}
	return t
}
