package load

import (
	"math"

	"github.com/select-service/select-service/internal/codec/msgpack"
)

// loadStat is the tag of the messages that are read.
const loadStat = "LoadStat"

// decode reads SGLang's LoadStat, an array of the tag and up to ten elements: its first releases
// end after the sixth of the array, later ones may append more, which are not read. An element
// that is nil or missing is unknown. The rank among them only informs: the stream decides.
func decode(payload []byte) (Report, Reason) {
	r := msgpack.Reader{Data: payload}
	n, ok := r.ArrayLen()
	if !ok || n < 2 {
		return Report{}, Malformed
	}
	if tag, ok := r.Text(); !ok || string(tag) != loadStat {
		return Report{}, Malformed
	}
	report := Report{Source: Push, Interval: heartbeat}
	for i, to := range [...]*Amount{
		&report.Running, &report.Waiting, &report.KVTokensUsed, &report.KVTokensTotal, nil,
		&report.WaitingUncachedTokens, &report.TokensUsedAndQueued, &report.MaxRunning,
		&report.PrefillTokens, &report.PrefillBusyMicros,
	} {
		if i == n-1 {
			break
		}
		if to == nil {
			if !r.Skip() {
				return Report{}, Malformed
			}
			continue
		}
		var why Reason
		if *to, why = amount(&r); why != Good {
			return Report{}, why
		}
	}
	report.capacities()
	return report, Good
}

// amount reads a number or nil.
func amount(r *msgpack.Reader) (Amount, Reason) {
	if r.Nil() {
		return Amount{}, Good
	}
	if code := r.Peek(); code == msgpack.CodeFloat32 || code == msgpack.CodeFloat64 {
		v, ok := r.Float()
		if !ok {
			return Amount{}, Malformed
		}
		return fromFloat(v)
	}
	n, negative, ok := r.Integer()
	switch {
	case !ok:
		return Amount{}, Malformed
	case negative || n > MaxAmount:
		return Amount{}, BadNumber
	}
	return Known(n), Good
}

// fromFloat rounds a number down.
func fromFloat(v float64) (Amount, Reason) {
	if math.IsNaN(v) || v < 0 || v > MaxAmount {
		return Amount{}, BadNumber
	}
	return Known(uint64(v)), Good
}

// capacities makes capacities of 0, which engines send while they do not know them, unknown.
func (r *Report) capacities() {
	for _, a := range []*Amount{&r.KVTokensTotal, &r.MaxRunning} {
		if a.n == 0 {
			*a = Amount{}
		}
	}
}
