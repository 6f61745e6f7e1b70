package selection

import (
	"cmp"
	"strings"
	"unicode/utf8"

	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/internal/selection/identity"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// MaxFairName bounds the name of a program or a tenant that pays for requests, in bytes.
const MaxFairName = identity.MaxName

// FairName returns the name in a header: "" for one that could not be that of a session either (see identity.FaultOf), or is no
// UTF-8, which counts as missing.
func FairName(value string) string {
	value = strings.TrimSpace(value)
	if identity.FaultOf(value) != 0 || !utf8.ValidString(value) {
		return ""
	}
	return value
}

// charge is the engine time of a reservation, for which somebody pays. A nil charge is nobody's.
type charge struct {
	*fairness.Charge
	scopes *scopes.Registry // has the time
	before fairness.Load    // what the rank had to do when it was chosen
}

func (c *charge) prefillEnded() {
	if c != nil {
		c.PrefillEnded(c.scopes.Seconds())
	}
}

// arrived notes that the request has come for which a reservation was made ahead.
func (c *charge) arrived() {
	if c != nil {
		c.Arrived(c.scopes.Seconds())
	}
}

func (c *charge) end() {
	if c != nil {
		c.End(c.scopes.Seconds())
	}
}

// charge charges the choice that is about to be booked. The ledger may choose a second time.
func (a *attempt) charge(r *idempotencyRecord, v *reservations.View) {
	if a.payer.Class == nil {
		return
	}
	load := v.Load(a.choice.chosen.Slot)
	a.chargeAfter(r, fairness.Load{Tokens: load.PrefillTokens, Requests: load.Requests})
}

// chargeAfter charges the choice for a rank that had to do what before has when it was chosen.
func (a *attempt) chargeAfter(r *idempotencyRecord, before fairness.Load) {
	r.uncharge()
	begin := a.payer.Class.Begin
	if !a.Ahead.IsZero() {
		begin = a.payer.Class.Reserve
	}
	work := a.choice.predictedWork(a.result.EffectivePrefillTokens)
	if a.result.TrackPrefill {
		work.Tokens = a.result.EffectivePrefillTokens
	}
	work.Before = before
	r.charge = &charge{begin(a.payer.Account, a.choice.chosen.Rank, work, a.api.scopes.Seconds()), a.api.scopes, before}
}

// uncharge takes the charge of a reservation back that was not booked. r may be nil.
func (r *idempotencyRecord) uncharge() {
	if r != nil && r.charge != nil {
		r.charge.Cancel(r.charge.scopes.Seconds())
	}
}

// chargePair charges a pair for its prefill as it is predicted, which stays: what its sides are observed to take is not told
// apart.
func (a *attempt) chargePair() {
	if a.payer.Class == nil {
		return
	}
	c, s := &a.choice, &a.pair.result.Decode
	if x := a.pair.result.Prefill; x != nil {
		c, s = &a.pair.prefill.choice, x
	}
	a.payer.Class.Once(a.payer.Account, c.chosen.Rank, c.predictedWork(s.EffectivePrefillTokens), a.api.scopes.Seconds())
}

const (
	// mostBase bounds the part of a prefill's time that does not depend on its tokens, in seconds. A step of an engine takes a
	// few milliseconds for itself. What was learned beyond that is how long a prompt waits for the step before, which is
	// no work.
	mostBase = 0.005
	// attended is how many tokens before it an output token attends to in the time in which the rank computes one token of a
	// prompt. It is between 700 and 3,000 for models of 8B to 70B parameters, by their operations and the bytes of their KV
	// cache.
	attended = 1200
	// stepTokens is how many tokens of prompts a step computes on a worker whose max_num_batched_tokens is unknown. It is the
	// default of vLLM and SGLang for a serving engine.
	stepTokens = 8192
)

// predictedWork returns what the request is predicted to be for the chosen rank: by what was learned or, if
// no policy predicts, by ttft.Default, which then takes tokens as those to compute.
func (c *choice) predictedWork(tokens uint64) fairness.Work {
	if c.uncached > 0 {
		tokens = c.uncached
	}
	model, speed := ttft.Default(), 1.0
	if l := c.scope.rules.Learner(); l != nil {
		model = l.Model().Parameters
		speed, _ = l.Rank(c.chosen.Slot, c.chosen.Rank)
	}
	model.Base = min(model.Base, mostBase)
	prompt := float64(c.prompt.size.Tokens)
	return fairness.Work{
		Prefill: speed * model.Prefill(float64(tokens), prompt),
		Answer:  (1 + prompt/attended) / float64(cmp.Or(batchLimit(c.chosen.Worker), stepTokens)),
	}
}
