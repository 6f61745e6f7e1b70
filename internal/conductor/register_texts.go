package conductor

import (
	"fmt"
	"strings"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/kvevents"
)

// maxRegistered bounds each string of a registration, in bytes, as in events: it is kept, and
// answers repeat names many times.
const maxRegistered = kvevents.MaxKey

// fieldText is a string of a body with the name of its field.
type fieldText struct{ field, value string }

// textsOf returns the strings of a registration.
func textsOf(reg *Registration) []fieldText {
	return []fieldText{
		{"endpoint", reg.Endpoint},
		{"replay_endpoint", reg.Replay},
		{"modelname", reg.Model},
		{"lora_name", reg.LoRA},
		{"tenant_id", reg.Tenant},
		{"instance_id", reg.Instance},
		{"additionalsalt", reg.Salt},
	}
}

// filterTexts returns the strings that a filter gives.
func filterTexts(f *Filter) []fieldText {
	texts := []fieldText{{"instance_id", f.Instance}, {"tenant_id", f.Tenant}}
	for _, t := range []struct {
		field string
		value *string
	}{
		{"modelname", f.Model},
		{"lora_name", f.LoRA},
		{"additionalsalt", f.Salt},
		{"endpoint", f.Endpoint},
		{"replay_endpoint", f.Replay},
	} {
		if t.value != nil {
			texts = append(texts, fieldText{t.field, *t.value})
		}
	}
	return texts
}

// checkLengths refuses strings that are too long.
func checkLengths(texts []fieldText) error {
	for _, text := range texts {
		if n := len(text.value); n > maxRegistered {
			e := contract.Errorf(contract.BadRequest, "%s: %d bytes are too long, at most %d", text.field, n, maxRegistered)
			e.Reason, e.Field = reasonInvalidField, text.field
			return e
		}
	}
	return nil
}

// unmatchedText returns the error text for a filter that matches no registration. It does not
// repeat salts.
func unmatchedText(f *Filter) string {
	var by []string
	for _, t := range filterTexts(f)[2:] { // after instance and tenant
		if t.field == "additionalsalt" {
			by = append(by, "the additionalsalt given")
			continue
		}
		by = append(by, fmt.Sprintf("%s %q", t.field, t.value))
	}
	if f.Type != nil {
		by = append(by, fmt.Sprintf("type %v", *f.Type))
	}
	if f.BlockSize != nil {
		by = append(by, fmt.Sprintf("block_size %d", *f.BlockSize))
	}
	if f.HashSeed != nil {
		by = append(by, fmt.Sprintf("hash_seed %d", *f.HashSeed))
	}
	switch {
	case len(by) == 0 && f.Rank == nil:
		return fmt.Sprintf("service not found: %s|%s", f.Instance, f.Tenant)
	case len(by) == 0:
		return fmt.Sprintf("service not found: %s|%s|%d", f.Instance, f.Tenant, *f.Rank)
	case f.Rank != nil:
		by = append(by, fmt.Sprintf("dp_rank %d", *f.Rank))
	}
	return fmt.Sprintf("no registration of instance %s, tenant %s matches %s", f.Instance, f.Tenant, strings.Join(by, ", "))
}
