package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnnamed: records without a worker_id register and remove nothing, whatever the file's form: the service
// is not even asked. The message names the file and the record.
func TestUnnamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{}":                                    "record 1: it has no worker_id",
		"[{}]":                                  "record 1: it has no worker_id",
		`{"workers":[]}` + "\n---\n{}":          "record 1: it has no worker_id",
		"workers: [{}]":                         "record 1: it has no worker_id",
		"model_name: llama":                     "record 1: it has no worker_id",
		"- worker_id: 1\n- endpoint: http://b":  "record 2: it has no worker_id",
		"worker_id: 1\n---\nendpoint: http://b": "record 2: it has no worker_id",
		"worker_id: 1\n---\n[worker_id: 2, worker_id: ]": "record 3: it has no worker_id",
		`[{"worker_id": null}]`:                          "record 1: it has no worker_id",
		"worker_id: ~":                                   "record 1: it has no worker_id",
		"worker_id:":                                     "record 1: it has no worker_id",
		"workerId: 1":                                    "record 1: it has no worker_id",
		"Worker_ID: 1":                                   "record 1: it has no worker_id",
		"id: 1":                                          "record 1: it has no worker_id",
		"worker_id : 1\nworkers: []":                     `record 1: json: unknown field "workers"`,
		"workers: []\nmodel_name: m":                     "record 1: it has no worker_id",
		"[null]":                                         "record 1: it is <nil>, want an object with worker_id",
		"- worker_id: 1\n-":                              "record 2: it is <nil>, want an object with worker_id",
		"[7]":                                            "record 1: it is 7, want an object with worker_id",
		"[[worker_id: 1]]":                               "want an object with worker_id",
		"worker_id: ''":                                  "record 1: json: cannot unmarshal string",
		"worker_id: -1":                                  "record 1: json: cannot unmarshal number",
		"worker_id: 1.5":                                 "record 1: json: cannot unmarshal number",
		"":                                               "no records",
		"# all is commented out":                         "no records",
		"null":                                           "no records",
		"---\n---\n":                                     "no records",
		"workers: {}":                                    "want records of workers",
		"workers: ~":                                     "workers is empty",
		"- worker_id: 1\n  worker_id: 2":                 "already defined",
	} {
		file := filepath.Join(t.TempDir(), "some.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		service := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%q: %s %s", text, r.Method, r.URL) }))
		for _, command := range []string{"workers apply", "workers apply --dry-run", "workers apply -m llama", "workers add"} {
			for from, named := range map[string]string{file: file, "-": "standard input"} {
				var out bytes.Buffer
				code := run(t.Context(), append(strings.Fields(command), "-f", from, "--url", service.URL), strings.NewReader(text), &out, &out)
				if code != exitFailed || !strings.Contains(out.String(), named) || !strings.Contains(out.String(), want) {
					t.Errorf("%s of %q from %s ended with %d: %s", command, text, from, code, &out)
				}
			}
		}
		service.Close()
	}
}
