package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestLogPolicy: the start log names the policy, why it decides and, only where one does, the weight that decides.
func TestLogPolicy(t *testing.T) {
	every := policies.NewServed(func(catalog.Scope) bool { return true })
	for want, s := range map[string]policies.Settings{
		`"policy":"predicted-ttft","decided_by":"front","message"`:                       {Served: every},
		`"weight":"--router-temperature","policy":"default","decided_by":"weight"`:       {Served: every, Weight: "--router-temperature"},
		`"policy":"random","decided_by":"option","message"`:                              {Type: "random"},
		`"policy":"round-robin","decided_by":"option","message":"selection policy where`: {Served: every, Type: "round-robin", Weight: "--router-temperature"},
	} {
		table, err := (*policies.Section)(nil).Resolve(s)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		logPolicy(config.WorkerSelection{Policies: table}, zerolog.New(&out))
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s, want %s", out.String(), want)
		}
	}
}
