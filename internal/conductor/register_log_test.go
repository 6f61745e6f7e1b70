package conductor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// line is a line of the log as logLines shows it.
func line(text string, fields ...string) string {
	slices.Sort(fields)
	return text + " " + strings.Join(fields, " ")
}

// publisherFields are those that name the publisher of a registration.
func publisherFields(r conductor.Registration, more ...string) []string {
	return append(more, "type=vLLM", "model=m", "tenant=t", "instance="+r.Instance, fmt.Sprint("rank=", r.Rank),
		"block_size=4", "endpoint="+r.Endpoint)
}

// TestConductorLog: what comes, goes or is refused has a line, which says
// neither salt nor more of a text than a log can take; the same again has none.
func TestConductorLog(t *testing.T) {
	w := servicetest.Start(t)
	r := servicetest.Registration("i", 1, func(r *conductor.Registration) { r.Salt, r.LoRA = "secret", "sql" })
	w.Register(r)
	w.Register(r)
	w.WantLog(line("info: publisher registered", publisherFields(r, "lora=sql")...))

	other := r
	other.HashSeed = 7
	if err := w.Conductor().Register(other); err == nil {
		t.Fatal("registered with another hash seed")
	}
	w.WantLog(line("warn: registration of a publisher refused", publisherFields(r, "lora=sql", "reason=already_registered", "field=hash_seed",
		`error=instance "i" rank 1 is already registered at tcp://i:5001 with replay endpoint "" and hash seed 1337`)...))
	other.Instance = "j"
	if err := w.Conductor().Register(other); err == nil {
		t.Fatal("registered with another hash seed")
	}
	if got := strings.Join(w.Log.Take(t), "\n"); strings.Contains(got, "secret") || !strings.Contains(got, "reason=hash_seed_mismatch") {
		t.Errorf("log is %s", got)
	}
	other.Instance, other.Endpoint, other.Salt = strings.Repeat("i", 1<<20), strings.Repeat("e", 1<<20), "secret"+strings.Repeat("s", 1<<20)
	if err := w.Conductor().Register(other); err == nil {
		t.Fatal("registered with long names")
	}
	if got := strings.Join(w.Log.Take(t), "\n"); len(got) > 2000 || strings.Contains(got, "secret") || !strings.Contains(got, "reason=invalid_field") {
		t.Errorf("log is %d bytes: %.2000s", len(got), got)
	}

	f := servicetest.Instance("i")
	f.Salt = new("wrong secret")
	if _, err := w.Conductor().Unregister(f); err == nil {
		t.Fatal("unregistered with another salt")
	}
	w.WantLog(line("warn: unregistration of publishers refused", "instance=i", "tenant=t", "reason=not_found",
		"error=no registration of instance i, tenant t matches the additionalsalt given"))
	w.Unregister(servicetest.Instance("i"), "i|t|1")
	w.WantLog(line("info: publisher unregistered", publisherFields(r, "lora=sql")...))
}
