package openai

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestFieldsOfEngines proves that the list of the engines' fields, which scripts/test-fields.sh
// compares with their releases, is true: what it says is read has an effect on the Request, and
// nothing else has one.
func TestFieldsOfEngines(t *testing.T) {
	text, err := os.ReadFile("../../../../test/others/fields/request_fields.json")
	if err != nil {
		t.Fatal(err)
	}
	var engines map[string]map[string]map[string][]string // engine, model, group: fields
	if err := json.Unmarshal(text, &engines); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]Kind{
		"ChatCompletionRequest": Chat, "CompletionRequest": Completions,
		"ResponsesRequest": Responses, "AnthropicMessagesRequest": Messages,
	}
	compared := 0
	for _, models := range engines {
		for model, groups := range models {
			_, name, _ := strings.Cut(model, ":")
			kind, ok := kinds[name]
			if !ok {
				continue
			}
			compared++
			for group, fields := range groups {
				want := !slices.Contains([]string{"none", "renderer", "unread"}, group)
				for _, f := range fields {
					if isRead(kind, f) != want {
						t.Errorf("%s: %s is listed as %q, and read is %v", model, f, group, !want)
					}
				}
			}
		}
	}
	if compared != 8 {
		t.Errorf("%d models of the four kinds, want two engines' four", compared)
	}
}

// isRead reports whether any value of the member makes a Request that an empty body does not.
func isRead(kind Kind, member string) bool {
	for _, value := range []string{`true`, `"x"`, `[]`, `{"include_usage":true}`, `{"session_id":"x"}`} {
		r, err := ParseRequest(kind, []byte(`{"`+member+`":`+value+`}`))
		if err != nil {
			return true // only what is read can be refused
		}
		r.body, r.open = nil, 0
		if !reflect.DeepEqual(*r, Request{Kind: kind}) {
			return true
		}
	}
	return false
}
