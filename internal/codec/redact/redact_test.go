package redact

import "testing"

// TestURLs: credentials go, all else stays as it is.
func TestURLs(t *testing.T) {
	for text, want := range map[string]string{
		"nats://user:password@h:4222": "nats://xxxxx@h:4222",
		"nats://token@h:4222":         "nats://xxxxx@h:4222",
		"nats://user:@h":              "nats://xxxxx@h",
		"nats://:password@h":          "nats://xxxxx@h",
		"tls://u:p%40ss@[::1]:4222":   "tls://xxxxx@[::1]:4222",
		"tls://u:p@ss@h":              "tls://xxxxx@h",
		"http://u:p/w@h/path":         "http://xxxxx@h/path",
		"http://u:p?w#x@h":            "http://xxxxx@h",
		"//u:p@h":                     "//xxxxx@h",
		"vllm=https://u:p@h:8000/v1":  "vllm=https://xxxxx@h:8000/v1",
		`invalid URL "http://u:p@h": parse "http://u:p@h": no`: `invalid URL "http://xxxxx@h": parse "http://xxxxx@h": no`,
		"invalid URL `http://u:p@h`: want http://host:port":    "invalid URL `http://xxxxx@h`: want http://host:port",
		"nats://a:b@c:1,nats://d:e@f:2":                        "nats://xxxxx@c:1,nats://xxxxx@f:2",

		"nats://h:4222":                         "nats://h:4222",
		"http://[::1]/a@b":                      "http://[::1]/a@b",
		"http://h:8000/models/a@b":              "http://h:8000/models/a@b",
		"http://h/models/a@b?c=d@e":             "http://h/models/a@b?c=d@e",
		"llama:70b@tenant":                      "llama:70b@tenant",
		"name=org/model@tenant":                 "name=org/model@tenant",
		`{"endpoint":"http://w:1","who":"a@b"}`: `{"endpoint":"http://w:1","who":"a@b"}`,
		"endpoint=http://w:1 who=a@b":           "endpoint=http://w:1 who=a@b",
		"http://host:port, who@x":               "http://host:port, who@x",
		"//":                                    "//",
		"":                                      "",
	} {
		if got := URLs(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
