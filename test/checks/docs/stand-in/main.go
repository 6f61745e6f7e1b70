// Command stand-in stands for a program of the tutorials where that is not installed. Under the program's name
// it sends, by the configuration that the tutorial writes, the request that the program sends: recorded from
// LiteLLM 1.108.7, Claude Code 2.1.197 and Codex 0.171.0, with shorter texts and two of the tools.
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

//go:embed claude-code-2.1.197.json
var claudeBody []byte

//go:embed codex-0.171.0.json
var codexBody []byte

func main() {
	name := filepath.Base(os.Args[0])
	if err := run(name, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "stand-in for %s: %v\n", name, err)
		os.Exit(1)
	}
}

func run(name string, args []string) error {
	switch name {
	case "litellm":
		return litellm(args)
	case "claude":
		return claude()
	case "codex":
		return codex()
	}
	return errors.New("there is none")
}

// ask sends a streamed request and checks that the answer ends as its API says.
func ask(url, model string, body []byte, last string, header map[string]string) error {
	text := bytes.Replace(body, []byte(`"model": "MODEL"`), []byte(`"model": "`+model+`"`), 1)
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return err
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte("event: "+last+"\n")) {
		return fmt.Errorf("%d %w %.500s", resp.StatusCode, err, answer)
	}
	fmt.Println("answered")
	return nil
}

func claude() error {
	base := os.Getenv("ANTHROPIC_BASE_URL")
	if resp, err := http.Head(base); err != nil { // it looks whether somebody is there
		return err
	} else if err := resp.Body.Close(); err != nil {
		return err
	}
	return ask(base+"/v1/messages?beta=true", os.Getenv("ANTHROPIC_MODEL"), claudeBody, "message_stop", map[string]string{
		"Accept": "application/json", "Authorization": "Bearer " + os.Getenv("ANTHROPIC_AUTH_TOKEN"), "User-Agent": "claude-cli/2.1.197 (external, sdk-cli)",
		"Anthropic-Version": "2023-06-01", "Anthropic-Beta": "claude-code-20250219,interleaved-thinking-2025-05-14", "X-App": "cli", "X-Stainless-Lang": "js",
	})
}

func codex() error {
	config, err := os.ReadFile(filepath.Join(os.Getenv("HOME"), ".codex", "config.toml"))
	if err != nil {
		return err
	}
	found := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^(\w+) = "?([^"\n]*)`).FindAllStringSubmatch(string(config), -1) {
		found[m[1]] = m[2]
	}
	if found["wire_api"] != "responses" || found["web_search"] != "disabled" || found["multi_agent"] != "false" {
		return fmt.Errorf("the recorded request is not that of this configuration: %v", found)
	}
	return ask(found["base_url"]+"/responses", found["model"], codexBody, "response.completed", map[string]string{
		"Accept": "text/event-stream", "Originator": "codex_exec", "User-Agent": "codex_exec/0.171.0", "Session-Id": "01a223b8", "X-Codex-Beta-Features": "remote_compaction_v2",
	})
}

// litellm serves chats at a port as LiteLLM does: under its name of the model, to its master key.
func litellm(args []string) error {
	if len(args) != 4 || args[0] != "--config" || args[2] != "--port" {
		return fmt.Errorf("arguments %q", args)
	}
	config, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	read := regexp.MustCompile(`(?m)^\s+- model_name: (\S+).*\n\s+litellm_params:\n\s+model: hosted_vllm/(\S+)\n\s+api_base: (\S+)$`).FindSubmatch(config)
	if read == nil {
		return fmt.Errorf("the configuration is not read: %s", config)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health/liveliness", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `"I'm alive!"`) })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body["model"] != string(read[1]) || r.Header.Get("Authorization") != "Bearer "+os.Getenv("LITELLM_MASTER_KEY") {
			http.Error(w, fmt.Sprint(body, err), http.StatusBadRequest)
			return
		}
		body["model"], body["stream"] = string(read[2]), false
		text, err := json.Marshal(body)
		if err != nil {
			panic(err) // it was JSON before
		}
		req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, string(read[3])+"/chat/completions", bytes.NewReader(text))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		req.Header = http.Header{"User-Agent": {"litellm/1.108.7"}, "Authorization": {"Bearer fake-api-key"}, "Content-Type": {"application/json"}}
		for name, values := range r.Header {
			if strings.HasPrefix(name, "X-") {
				req.Header[name] = values
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	})
	server := &http.Server{Addr: "127.0.0.1:" + args[3], Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	return server.ListenAndServe()
}
