// Program newcomer prints, as one bash script, what a newcomer copies into a shell: the commands
// of the fenced blocks of the pages that are its arguments, in their order. The lines of leftOut
// are not among them. scripts/test-newcomer.sh runs the script on a bare machine.
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// leftOut are the lines of fenced blocks that are not played, each as it is printed in its page.
// Every other line is, so that a new block needs no entry here. A line that its page no longer has
// is a fault.
var leftOut = []struct{ page, why, lines string }{
	{"README.md", "it needs two engines on other machines; TestTwoEngines plays it with simulated ones", `
bin/select-service --engines http://gpu-1:8000,http://gpu-2:8000 --proxy-port 8080 > service.log 2>&1 &
until curl -sf localhost:8080/ready; do sleep 1; done
curl -s localhost:8080/v1/chat/completions -H 'content-type: application/json' -d '{
  "model": "MODEL", "messages": [{"role": "user", "content": "Hello"}]}'
`},
	{"docs/start/install.md", "it installs on this machine, or needs a container engine; make test-packages plays it", `
apt install ./dist/select-service_0.0.0_amd64.deb     # or: dnf install ./dist/select-service-0.0.0-1.x86_64.rpm
systemctl status select-service
docker load -i dist/select-service-0.0.0-image.tar     # Docker 25; or: kind load image-archive …, ctr image import …
docker run --rm --pull never --read-only --cap-drop ALL -p 127.0.0.1:8092:8092 ghcr.io/select-service/select-service:0.0.0
`},
	{"docs/start/install.md", "it needs a registry of images", `
skopeo copy --all oci-archive:dist/select-service-0.0.0-image.tar docker://registry.example/select-service:0.0.0
`},
	{"docs/start/install.md", "it needs a cluster; make test-kube-api installs the chart in one", `
helm install select-service dist/select-service-0.0.0.tgz --namespace llm --create-namespace \
  --set image.repository=registry.example/select-service \
  --set provider=istio --set 'pools[0].name=llm,pools[0].create=true,pools[0].matchLabels.app=vllm,pools[0].targetPorts={8000}'
`},
}

// Languages of fenced blocks: those of commands, and those that are for reading.
var (
	commands = []string{"sh", "bash", "shell", ""}
	reading  = []string{"json", "yaml", "text", "go", "python"}
)

// block is a fenced block of commands.
type block struct {
	page   string
	number int // the line of the page at which its commands begin, from 1
	lines  []string
}

// blocks returns the fenced blocks of commands of a page, also those in a list.
func blocks(page, text string) (all []block, err error) {
	var fence, indent, language string
	var open block
	for i, line := range strings.Split(text, "\n") {
		bare := strings.TrimLeft(line, " ")
		switch {
		case fence == "" && (strings.HasPrefix(bare, "```") || strings.HasPrefix(bare, "~~~")):
			language = strings.TrimSpace(strings.TrimLeft(bare, bare[:1]))
			fence, indent = bare[:3], line[:len(line)-len(bare)]
			open = block{page: page, number: i + 2}
			if !slices.Contains(commands, language) && !slices.Contains(reading, language) {
				return nil, fmt.Errorf("%s:%d: a block of %q: it is not known whether these are commands", page, i+1, language)
			}
		case fence == "":
		case strings.HasPrefix(bare, fence):
			if slices.Contains(commands, language) {
				all = append(all, open)
			}
			fence = ""
		default:
			open.lines = append(open.lines, strings.TrimPrefix(line, indent))
		}
	}
	if fence != "" {
		return nil, fmt.Errorf("%s:%d: a block without an end", page, open.number-1)
	}
	return all, nil
}

// reason says why a line of a page is left out, "" if it is played.
func reason(page, line string) string {
	for _, l := range leftOut {
		if l.page == page && slices.Contains(strings.Split(strings.Trim(l.lines, "\n"), "\n"), line) {
			return l.why
		}
	}
	return ""
}

// script makes of blocks the bash script that plays them and names what is left out.
func script(all []block) string {
	var out strings.Builder
	for _, b := range all {
		fmt.Fprintf(&out, "\n# %s:%d\n", b.page, b.number)
		for _, line := range b.lines {
			if why := reason(b.page, line); why != "" {
				fmt.Fprintf(&out, "# left out, %s: %s\n", why, line)
			} else {
				fmt.Fprintln(&out, line)
			}
		}
	}
	return out.String()
}

func run(pages []string) error {
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return fmt.Errorf("read page: %w", err)
		}
		all, err := blocks(page, string(text))
		if err != nil {
			return err
		}
		if _, err := io.WriteString(os.Stdout, script(all)); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "newcomer:", err)
		os.Exit(1)
	}
}
