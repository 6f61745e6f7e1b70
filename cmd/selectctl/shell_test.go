package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/select-service/select-service/test/checks/e2e"
)

// examples returns the command lines of the help texts and of the document, in the order in which
// they stand there.
func examples(t *testing.T) (lines []string) {
	t.Helper()
	add := func(line string) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "  ")
		if line = strings.TrimPrefix(line, "bin/"); strings.HasPrefix(line, "selectctl ") && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for line := range strings.Lines(c.Example) {
			add(line)
		}
		if c.Runnable() && !c.HasSubCommands() && c.Example == "" && c.Name() != "help" && c.Parent() != nil && c.Parent().Name() != "completion" {
			add(c.CommandPath() + " ")
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk((&app{}).root())
	text, err := os.ReadFile("../../docs/run/selectctl.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```(?:sh|console)?\n(.*?)```|`(selectctl [^`]*)`").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1] + block[2]) {
			add(line)
		}
	}
	return lines
}

// brief has a bench end after 100 ms: both cores are busy as long as it lasts.
func brief(line string) string {
	return regexp.MustCompile(`selectctl bench\b`).ReplaceAllString(regexp.MustCompile(` --for \S+`).ReplaceAllString(line, ""), "$0 --for 100ms")
}

// endless are the examples that go on until they are interrupted.
var endless = regexp.MustCompile(`decisions.* -f|--watch`)

// TestExamples: every example of the help texts and of docs/run/selectctl.md does, in a real shell, what
// it says: it ends with 0, the doctor with 4 where it has found something.
func TestExamples(t *testing.T) {
	t.Parallel()
	service := start(t)
	dir, env := program(t, service)
	record := func(id int) string {
		return fmt.Sprintf(`{"worker_id": %d, "model_name": "llama", "endpoint": "http://w%d:1", "block_size": 16}`, id, id)
	}
	for name, text := range map[string]string{
		"worker.yaml": record(9), "workers.yaml": "[" + record(7) + "," + record(8) + "]", "prompt.txt": "[1, 2, 3, 4]",
		"request.json": `{"model": "llama", "messages": [{"role": "user", "content": "Hello"}]}`,
		"trace.jsonl":  `{"timestamp": 0, "input_length": 40, "output_length": 2, "hash_ids": [1]}` + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	all := examples(t)
	if len(all) < 25 {
		t.Fatalf("only %d examples are found: %q", len(all), all)
	}
	for _, line := range all {
		for _, id := range []int{7, 8} {
			if _, err := e2e.Call(t.Context(), http.DefaultClient, http.MethodPost, service+"/workers", []byte(record(id))); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cmd := exec.CommandContext(ctx, bash, "-c", "set -o pipefail; "+brief(line))
		cmd.Dir, cmd.Env = dir, env
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if endless.MatchString(line) {
			time.AfterFunc(300*time.Millisecond, cancel)
		}
		err := cmd.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == exitFinding && strings.Contains(line, "doctor") || endless.MatchString(line) && ctx.Err() != nil {
			err = nil
		}
		cancel()
		if err != nil {
			t.Errorf("%s: %v\n%s", line, err, &out)
		}
	}
}

// shells are scripts that complete a word in a real shell and print what it proposes. They print
// "missing" and a reason, and nothing else, where the shell lacks what its script needs.
var shells = map[string]string{
	"bash": `for f in /usr/share/bash-completion/bash_completion /etc/bash_completion; do [ ! -f $f ] || . $f; done
declare -F _get_comp_words_by_ref >/dev/null || { echo "missing: bash has no bash-completion"; exit; }
source <(selectctl completion bash)
COMP_WORDS=(selectctl wor) COMP_CWORD=1 COMP_LINE='selectctl wor' COMP_POINT=13 COMP_TYPE=9
__start_selectctl
printf '%s\n' "${COMPREPLY[@]}"`,
	"fish": `selectctl completion fish | source; complete -C 'selectctl wor'`,
	"zsh": `zmodload zsh/zpty 2>/dev/null || { echo "missing: zsh has no module zsh/zpty"; exit; }
zpty z zsh -f -i
zpty -w z "PS1=; autoload -U compinit; compinit -u -d $HOME/dump; source <(selectctl completion zsh); echo read''y"
zpty -r -m z seen '*ready*'
zpty -w -n z $'selectctl wor\t'
zpty -r -m z seen '*workers*'
printf '%s\n' "$seen"
zpty -d z`,
}

// TestCompletion: the scripts of "selectctl completion" complete a command in real shells, those that
// this machine has; make test-completion installs all.
func TestCompletion(t *testing.T) {
	t.Parallel()
	_, env := program(t, "http://127.0.0.1:1")
	for _, shell := range slices.Sorted(maps.Keys(shells)) {
		t.Run(shell, func(t *testing.T) {
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skip("there is no " + shell + ": make test-completion")
			}
			ctx, cancel := context.WithTimeout(t.Context(), e2e.Patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, path, "-c", shells[shell])
			cmd.Env = append(env, "TERM=dumb")
			out, err := cmd.CombinedOutput()
			if missing, ok := strings.CutPrefix(string(out), "missing: "); ok && err == nil {
				t.Skip(strings.TrimSpace(missing) + ": make test-completion")
			}
			if err != nil || !strings.Contains(string(out), "workers") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
