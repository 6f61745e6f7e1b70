package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/helpers/length"
)

// hostile is a text that a terminal must not see as it is: escape sequences, a bell, C1 and DEL, text that runs
// backwards, separators, characters without width, and a line that would be a worker of its own, with an id that no
// measured figure is.
const hostile = "a\x1b]0;owned\a\x1b[2Kb\r\b\t\x00\u0085\u009b31m\x7f\u202e\u2066\u2028\u2029\u200b\u200d\u2060\ufeff\u00ad\ufe0f\u3164\U000e0041" +
	"\n9907990799  forged  default  schedulable"

// hostileAnswers are full answers of each path, in all whose texts is hostile.
var hostileAnswers = map[string]any{
	"GET /workers": []client.Worker{}, "POST /workers": client.Worker{}, "PUT /workers": map[string]any{"added": []uint64{1}, "replicas_behind": []string{hostile}},
	"POST /workers/1/drain": client.Worker{}, "DELETE /workers/1/drain": client.Worker{}, "DELETE /workers/1": client.Worker{},
	"GET /ready": client.Readiness{}, "GET /fleet": client.Fleet{}, "GET /loads": []client.ScopeLoads{}, "POST /overlap_scores": client.OverlapScores{},
	"POST /explain": client.Explanation{}, "POST /tokenize": client.TokenizedPrompt{}, "GET /decisions": []client.Decision{}, "GET /sessions": client.SessionPage{}, "GET /fairness": client.Fairness{}, "GET /replicas": client.Replicas{},
	"GET /index/prefixes": client.Prefixes{}, "GET /doctor": client.Examination{}, "GET /busy_threshold": map[string]any{"thresholds": []client.Thresholds{{Model: hostile}}},
	"POST /busy_threshold": client.Thresholds{}, "DELETE /busy_threshold": client.Thresholds{}, "POST /select": client.Selection{},
	"GET /dump": map[string]any{hostile: []string{hostile}},
}

// poison sets all texts that a value has room for, and an element of each list and map.
func poison(v reflect.Value, depth int) {
	if depth > 8 {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile)
	case reflect.Interface:
		if v.NumMethod() == 0 && v.IsNil() {
			v.Set(reflect.ValueOf(hostile))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		poison(v.Elem(), depth+1)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1<<30, 0).UTC()))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				poison(v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte(`"x"`))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		poison(v.Index(0), depth+1)
	case reflect.Map:
		if v.Len() > 0 {
			return
		}
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		poison(key, depth+1)
		poison(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Int, reflect.Int64, reflect.Float32, reflect.Float64, reflect.Bool:
	}
}

// hostileService answers everything with hostile texts: as answers, as errors in JSON, or as neither.
func hostileService(t *testing.T, kind string) string {
	t.Helper()
	answers := make(map[string][]byte)
	for path, answer := range hostileAnswers {
		full := reflect.New(reflect.TypeOf(answer)).Elem()
		full.Set(reflect.ValueOf(answer))
		poison(full, 0)
		text, err := json.Marshal(full.Interface())
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		// As a hostile service writes it: nothing is escaped that JSON lets stand as it is.
		for _, r := range hostile {
			if r > 0x7e {
				text = bytes.ReplaceAll(text, []byte(fmt.Sprintf(`\u%04x`, r)), []byte(string(r)))
			}
		}
		answers[path] = text
	}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, known := answers[r.Method+" "+strings.TrimPrefix(r.URL.Path, "/v1.6")]
		switch {
		case !known:
			t.Errorf("no answer for %s %s", r.Method, r.URL.Path)
		case kind == "error":
			w.WriteHeader(http.StatusBadRequest)
			answer, _ = json.Marshal(map[string]string{"error": hostile, "reason": hostile, "details": hostile, "field": hostile})
		case kind == "garbage":
			answer = []byte(hostile)
		}
		_, _ = w.Write(answer)
	}))
	t.Cleanup(service.Close)
	return service.URL
}

// commandLines has a line or more for each command that asks a service.
var commandLines = map[string][]string{
	"status": {""}, "top": {"", "--once"}, "top tenants": {"", "--once"}, "top programs": {"", "--once"}, "workers": {""}, "workers list": {""}, "workers get": {"1"}, "workers describe": {"1"}, "workers add": {"-f FILE"},
	"workers drain": {"1"}, "workers undrain": {"1"}, "workers rm": {"1"}, "workers apply": {"-f FILE", "-f FILE --dry-run"}, "overlap": {"-t 1", "--text x"},
	"explain": {"-t 1", "--message x"}, "decisions": {"", "-f"}, "sessions": {""}, "replicas": {""}, "prefixes": {""}, "doctor": {"", "--all"}, "thresholds": {""},
	"thresholds set": {"m --decode-blocks 0.9"}, "thresholds unset": {"m"}, "dump": {""}, "bench": {"--for 20ms", "--for 20ms --hdr"},
}

// TestTerminal: whatever the command, the format and the answer are, a terminal gets no character that it
// would not just show, no text makes a line of its own, and JSON and YAML say what the service has said.
func TestTerminal(t *testing.T) {
	length.Sequential(t)
	t.Parallel()
	file := filepath.Join(t.TempDir(), "workers.yaml")
	if err := os.WriteFile(file, []byte("worker_id: 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	var commands []string
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.RunE != nil && cmd.Annotations[offline] == "" && (len(cmd.Commands()) == 0 || slices.Contains([]string{"workers", "thresholds", "top"}, cmd.Name())) {
			commands = append(commands, strings.TrimPrefix(cmd.CommandPath(), "selectctl "))
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk((&app{}).root())
	if want := slices.Sorted(maps.Keys(commandLines)); !slices.Equal(slices.Sorted(slices.Values(commands)), want) {
		t.Errorf("the commands are %q, played are %q", commands, want)
	}
	own := regexp.MustCompile(`\x1b\[(31|33|0)m|\x1b\[H\x1b\[2J|\tPercentile\tTotalCount\t`) // colours, a new page, the head of --hdr
	forged := regexp.MustCompile(`(?m)^[ \t"'-]*(worker/)?9907990799`)
	for _, command := range commands {
		watched, _, err := (&app{}).root().Find(strings.Fields(command))
		if err != nil {
			t.Fatal(err)
		}
		lines := commandLines[command]
		if watched.Flags().Lookup("watch") != nil {
			lines = append(slices.Clone(lines), lines[0]+" --watch")
		}
		for _, arguments := range lines {
			for _, kind := range []string{"answer", "error", "garbage"} {
				for _, format := range []string{"table", "wide", "json", "yaml", "name"} {
					for _, terminal := range []bool{true, false} {
						line := fmt.Sprintf("%s %s -o %s", command, strings.ReplaceAll(arguments, "FILE", file), format)
						t.Run(fmt.Sprintf("%s/%s/%t", line, kind, terminal), func(t *testing.T) {
							ctx, stop := context.WithTimeout(t.Context(), time.Minute)
							defer stop()
							var out, errs bytes.Buffer
							shown := writerFunc(func(p []byte) (int, error) {
								if strings.Contains(line, "--watch") || strings.Contains(line, " -f -o") || strings.HasPrefix(command, "top") && arguments == "" {
									defer stop() // it is shown, and would be for ever
								}
								return out.Write(p)
							})
							a := &app{out: shown, err: &errs, terminal: terminal, colours: terminal}
							a.run(ctx, append(strings.Fields(line), "--url", hostileService(t, kind)))
							text := own.ReplaceAllString(out.String()+errs.String(), "")
							if text == "" {
								t.Error("nothing is written")
							}
							if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !isShown(r) }); i >= 0 {
								t.Errorf("%q is written: %q", []rune(text[i:])[0], text)
							}
							// What is no JSON at all is copied by dump, which has no rows.
							if forged.MatchString(text) && (command != "dump" || kind != "garbage") {
								t.Errorf("a forged line:\n%s", text)
							}
							if kind == "answer" && command == "workers get" && arguments == "1" && format == "json" {
								var w client.Worker
								if err := json.Unmarshal(out.Bytes(), &w); err != nil || w.Model != hostile {
									t.Errorf("the JSON says %q, %v", w.Model, err)
								}
							}
							if kind == "answer" && command == "workers get" && arguments == "1" && format == "yaml" {
								var w struct {
									Model  string            `yaml:"model_name"`
									Labels map[string]string `yaml:"topology_domains"`
								}
								if err := yaml.Unmarshal(out.Bytes(), &w); err != nil || w.Model != hostile || w.Labels[hostile] != hostile {
									t.Errorf("the YAML says %q, %v", w, err)
								}
							}
							if kind == "answer" && command == "dump" {
								var all map[string][]string
								if err := json.Unmarshal(out.Bytes(), &all); err != nil || len(all[hostile]) != 1 || all[hostile][0] != hostile {
									t.Errorf("the dump says %q, %v", all, err)
								}
							}
						})
					}
				}
			}
		}
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestShown: what a terminal obeys, and what it shows as something else or not at all, is not shown (Unicode
// 15.0, chapters 23.1 and 23.2; UAX 9; DerivedCoreProperties, Default_Ignorable_Code_Point). Names of all
// scripts are.
func TestShown(t *testing.T) {
	t.Parallel()
	for _, r := range "\x00\a\b\t\n\v\f\r\x1b\x7f\u0080\u0085\u009b\u009f\u00a0\u00ad\u034f\u061c\u115f\u180e\u200b\u200c\u200d\u200e\u200f" +
		"\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u202f\u2060\u2061\u2064\u2066\u2067\u2068\u2069\u206a\u206f\u3000\u3164\ufe00\ufe0f\ufeff\uffa0\ufff9\ufffb" +
		"\ue000\U000e0001\U000e0020\U000e007f\U000e0100\U0010ffff" {
		if isShown(r) {
			t.Errorf("%U is shown", r)
		}
	}
	for _, r := range " ~aZ0äßéЖ中日あ한עא🙂\ufffd" {
		if !isShown(r) {
			t.Errorf("%U is not shown", r)
		}
	}
}

// TestLossless: JSON and YAML of any text can be read back, as a value, as a key and within a long text.
func TestLossless(t *testing.T) {
	t.Parallel()
	texts := []string{hostile, strings.Repeat("long text ", 100) + "\u202e", "\u202e", "'\"\\\u2028", "#\u200b", "---\n\U000e0001", "x\n", "\n", " \u00a0 "}
	for r := range rune(0x300) {
		texts = append(texts, "a: "+string(r)+"b")
	}
	for _, text := range texts {
		data := map[string]any{text: []any{text}, "plain": text}
		for format, read := range map[string]func([]byte, any) error{"json": json.Unmarshal, "yaml": yaml.Unmarshal} {
			var out bytes.Buffer
			a := &app{out: &out, options: options{format: format}}
			if err := a.show(data, nil); err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := read(out.Bytes(), &got); err != nil || !reflect.DeepEqual(got, data) {
				t.Errorf("%s of %q is %q: %v", format, text, out.String(), err)
			}
		}
	}
}

// TestNoCredentials: those of --url are shown neither above a live view nor in an error.
func TestNoCredentials(t *testing.T) {
	t.Parallel()
	service := strings.Replace(hostileService(t, "answer"), "//", "//user:SECRET@", 1)
	for _, args := range [][]string{
		{"status", "--watch", "--url", service},
		{"status", "--url", service + "/%zz"},
		{"status", "--url", "http://user:SECRET@127.0.0.1:1"},
		{"status", "--url", "ftp://user:SECRET@h"},
		{"status", "--url", "http://user:SECRET@h:x"},
	} {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		var out bytes.Buffer
		shown := writerFunc(func(p []byte) (int, error) {
			defer stop()
			return out.Write(p)
		})
		(&app{out: shown, err: &out, terminal: true}).run(ctx, args)
		if text := out.String(); text == "" || strings.Contains(text, "SECRET") {
			t.Errorf("%q: %s", args, text)
		}
		stop()
	}
}
