package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	option  = regexp.MustCompile(`(?:^|[^\w-])(--[a-z0-9][a-z0-9-]*)`)
	defined = regexp.MustCompile(`\b(?:Flags?\(\)|flag|flags|set|fs|f)\.\w+\((?:&[\w.]+, )?"([a-z0-9-]+)"`)
	route   = regexp.MustCompile("\\b(GET|POST|PUT|PATCH|DELETE) (/[^\\s`'\",;)?…*]*)")
	local   = regexp.MustCompile(`(?:localhost|127\.0\.0\.1|HOST):(?:8092|13333)(/[^\s'"?)` + "`" + `]*)`)
	inPath  = regexp.MustCompile(`(?m)^  (/[^:\n]*):$`)
)

// foreign are the options of other programs that the pages name. Those of the programs that the tutorials compare
// are in the tables that TestTutorialFlags holds against these programs.
const foreign = `
vLLM and SGLang: --block-size --data-parallel-size --enable-auto-tool-choice --enable-dp-attention --enable-metrics --enable-prefix-caching
  --exclude-tools-when-tool-choice-none --host --kv-events-config --kv-transfer-config --load-publish-endpoint --model --model-path --page-size --served-model-name
  --tool-call-parser
kubectl and helm: --all-namespaces --as --clusterrole --create-namespace --for --namespace --resource --serviceaccount --set --timeout --values --verb
docker: --cap-drop --pull --read-only --rm
curl: --cacert --cert --key --unix-socket
pip: --find-links --no-index
sha256sum: --ignore-missing
kill and systemctl: --now --signal
nats and nsc: --allow-pub --allow-pub-response --allow-sub --response-ttl
Prometheus: --enable-feature
codex: --skip-git-repo-check
endpoint pickers of llm-d and Dynamo: --allowed-origins --endpoint-selector --endpoint-target-ports --grpc-health-port --grpc-port --metrics-port
  --pool-name --pool-namespace --secure-serving
SMG and vllm-router: --balance-abs-threshold --balance-rel-threshold --cache-threshold --enable-mesh --kv-event-replay-source --kv-event-source
  --kv-index --load-monitor-interval
`

// TestOptionNames proves that the options that a page names exist: in the service, in selectctl, in the demos and
// other programs of this repository, or in a program of somebody else.
func TestOptionNames(t *testing.T) {
	root := rootOf(t)
	known := map[string]bool{"--config": true, "--help": true, "--help-all": true, "--version": true, "--check-config": true, "--print-config": true}
	learn := func(text string) {
		for _, m := range option.FindAllStringSubmatch(text, -1) {
			known[m[1]] = true
		}
	}
	learn(foreign)
	learn(read(t, root, "internal/config/testdata/help_all.golden"))
	learn(read(t, root, "Makefile"))
	for _, dir := range []string{"cmd", "demo", "scripts", "test"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			switch filepath.Ext(name) {
			case ".go", ".py", ".sh":
			default:
				return nil
			}
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			for _, m := range defined.FindAllStringSubmatch(string(b), -1) {
				known["--"+m[1]] = true
			}
			if filepath.Ext(name) != ".go" { // argparse, and what a script passes on
				learn(string(b))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, page := range pages(t, root) {
		if page == "CHANGELOG.md" || strings.HasPrefix(page, "docs/adr/") || strings.HasPrefix(page, "docs/start/tutorials/") ||
			page == "docs/reference/configuration.md" { // it also names what is refused with the way out
			continue
		}
		for _, m := range option.FindAllStringSubmatch(read(t, root, page), -1) {
			if !strings.HasSuffix(m[1], "-") && !known[m[1]] { // the former stands for all that begin so
				t.Errorf("%s names %s, which is no option", page, m[1])
			}
		}
	}
}

// elsewhere are routes that pages name and that are not in the API's description: those of engines, simulated
// ones too, of other services and of the proxy's clients.
var elsewhere = regexp.MustCompile(`^/(v1/|ui/|debug/|server_info$|global_view$|conductor$|generate$|info$|stats$|reset$|slow$|reset_prefix_cache$|kv_cache_events$|faults$)`)

// TestRoutes proves that the routes that a page names are in the API's description.
func TestRoutes(t *testing.T) {
	root := rootOf(t)
	var known []*regexp.Regexp
	for _, m := range inPath.FindAllStringSubmatch(read(t, root, "api/openapi.yaml"), -1) {
		path := regexp.MustCompile(`\\\{\w+\\\}`).ReplaceAllString(regexp.QuoteMeta(m[1]), `[^/]+`)
		known = append(known, regexp.MustCompile(`^(/conductor|/slots)?`+path+`$`), regexp.MustCompile(`^`+strings.TrimPrefix(strings.TrimPrefix(path, "/conductor"), "/slots")+`$`))
	}
	check := func(page, path string) {
		path = strings.TrimRight(path, ".:;")
		if path == "/" || path == "" || elsewhere.MatchString(path) {
			return
		}
		for _, k := range known {
			if k.MatchString(path) {
				return
			}
		}
		t.Errorf("%s names the route %s, which does not exist", page, path)
	}
	for _, page := range pages(t, root) {
		if page == "CHANGELOG.md" || strings.HasPrefix(page, "docs/adr/") {
			continue
		}
		text := read(t, root, page)
		for _, m := range route.FindAllStringSubmatch(text, -1) {
			check(page, m[2])
		}
		for _, m := range local.FindAllStringSubmatch(text, -1) {
			check(page, m[1])
		}
	}
}
