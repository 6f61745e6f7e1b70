package counts

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
)

var (
	// Families has the metric families of the collector.
	Families metrics.Families

	gatewayStreams       = Families.Gauge("gateway_streams", "Requests under way through the gateway, by the front that they came through: ext_proc or proxy.", "via")
	gatewayBookings      = Families.Gauge("gateway_bookings", "Of these, those that are booked on an engine.", "via")
	gatewayRequests      = Families.Counter("gateway_requests_total", "Requests through the gateway by what became of them: booked, placed (without a body, so not booked) or unbooked (by load, as the ledger had no room) on an engine, reserved (for a later request), else why not.", "outcome", "via")
	gatewayPickSeconds   = Families.Histogram("gateway_pick_seconds", "Time from the end of a request to the answer that names its engine, tokenizer and wait queue included.", "via")
	gatewayTokenizing    = Families.Histogram("gateway_tokenizer_seconds", "Time that the tokenizer took for a request, failures included.", "via")
	gatewayTokenFailures = Families.Counter("gateway_tokenizer_failures_total", "Requests whose tokens are not known, by why and by what became of them.", "reason", "action", "via")
	gatewayLengths       = Families.Counter("gateway_model_length_unknown_total", "Requests whose prompt the engine shortens to the length of its model, while that is unknown: the prompt counts as it stands.", "via")
	gatewayPrefills      = Families.Counter("gateway_prefill_completed_total", "Prefills that were complete, by what told it.", "by", "via")
	gatewayRebooked      = Families.Counter("gateway_rebooked_total", "Reservations of running requests that ended with their worker and were booked again when it was back.", "via")
	gatewayServed        = Families.Counter("gateway_served_total", "Responses by the endpoint that served them, of which Envoy tells it: the chosen one, a fallback to which the booking was moved, or one that is no worker of the model. The proxy chooses again where an engine refuses.", "endpoint", "via")
	gatewayPieces        = Families.Counter("gateway_answer_pieces_total", "Pieces of answers' bodies that passed through the gateway.", "via")
	gatewayCached        = Families.Histogram("gateway_cached_tokens", "Tokens of a prompt that its engine had cached, as the usage in its answer says.", "via")
	gatewayPredicted     = Families.Histogram("gateway_cached_tokens_predicted", "Tokens of the same prompts that the index had for the chosen rank.", "via")
	gatewayMispredicted  = Families.Counter("gateway_cached_tokens_mispredicted_total", "By how many tokens engines had more or less cached than the index had for them, summed up.", "engine_had", "via")
)

// GatewayOutcome is the outcome of a request through the gateway.
type GatewayOutcome uint8

// The outcomes.
const (
	GatewayBooked       GatewayOutcome = iota
	GatewayPlaced                      // placed by load; nothing is to be booked
	GatewayInvalid                     // 400
	GatewayUnknownModel                // 404
	GatewayBodyTimeout                 // 408
	GatewayTooLarge                    // 413
	GatewayOverloaded                  // 429
	GatewayUnavailable                 // 503
	GatewayTokenizer                   // 502, 503 or 504 for the tokenizer
	GatewayFailed                      // 500
	GatewayGone                        // the client left before an engine was chosen
	GatewayProtocol                    // the filter's configuration cannot be served
	GatewayUnbooked                    // placed by load, because the ledger has no room
	GatewayPath                        // 404 or 405 for the path
	GatewayDenied                      // 401 or 403
	GatewayReserved                    // 204: an engine is reserved for a later request
	gatewayOutcomes
)

var gatewayOutcomeNames = [gatewayOutcomes]string{
	"booked", "placed", "invalid", "unknown_model", "body_timeout", "too_large", "overloaded", "unavailable", "tokenizer", "failed", "gone", "protocol", "unbooked", "path", "denied", "reserved",
}

// PrefillSign is the sign by which the end of a prefill was noticed.
type PrefillSign uint8

// The signs.
const (
	PrefillByStream     PrefillSign = iota // the first event of a stream
	PrefillByEvent                         // a KV event that stores the end of the prompt
	PrefillByPrediction                    // the predicted time has passed
	PrefillByFirstByte
	prefillSigns
)

var prefillSignNames = [prefillSigns]string{"stream", "kv_event", "predicted", "first_byte"}

// TokenizerReason is why the tokens of a prompt are unknown.
type TokenizerReason uint8

// The reasons.
const (
	TokenizerRejected TokenizerReason = iota
	TokenizerUnavailable
	TokenizerTimeout
	TokenizerBroken
	TokenizerTooLarge // its answer is too large
	TokenizerNoMemory // no memory for its answer
	TokenizerOpen     // its circuit breaker is open
	TokenizerUnconvertible
	tokenizerReasons
)

var tokenizerReasonNames = [tokenizerReasons]string{"rejected", "unavailable", "timeout", "broken", "too_large", "no_memory", "open", "unconvertible"}

// TokenizerAction is how such a request was treated.
type TokenizerAction uint8

// The actions.
const (
	TokenizerRefused TokenizerAction = iota
	TokenizerLoadOnly
	tokenizerActions
)

var tokenizerActionNames = [tokenizerActions]string{"fail", "load_only"}

// ServedEndpoint is where a request went, as the gateway reports it.
type ServedEndpoint uint8

// The endpoints.
const (
	ServedChosen ServedEndpoint = iota
	ServedFallback
	ServedUnknown
	servedEndpoints
)

var servedEndpointNames = [servedEndpoints]string{"chosen", "fallback", "unknown"}

// tokenBounds are bounds in tokens, 16 to 1,048,576.
var tokenBounds = append([]float64{0}, metrics.Doubling(16, 17)...)

// Via is the front through which a request comes.
type Via uint8

// The fronts.
const (
	ExtProc Via = iota // Envoy
	Proxy
	vias
)

var viaNames = [vias]string{"ext_proc", "proxy"}

// String returns the name in metrics and spans.
func (v Via) String() string { return viaNames[v] }

// Gateway has the counts of all fronts, and collects them.
type Gateway struct{ fronts [vias]*Front }

// NewGateway returns counters at 0.
func NewGateway() *Gateway {
	g := new(Gateway)
	for i := range g.fronts {
		g.fronts[i] = &Front{
			picks: metrics.NewHistogram(metrics.RequestBounds), tokenizing: metrics.NewHistogram(metrics.RequestBounds),
			cached: metrics.NewHistogram(tokenBounds), predicted: metrics.NewHistogram(tokenBounds),
		}
	}
	return g
}

// Of returns the counts of a front.
func (g *Gateway) Of(v Via) *Front { return g.fronts[v] }

// TokenizerFailures counts the prompts whose tokens are unknown.
func (g *Gateway) TokenizerFailures() (n uint64) {
	for _, f := range g.fronts {
		for reason := range f.failures {
			for action := range f.failures[reason] {
				n += f.failures[reason][action].Load()
			}
		}
	}
	return n
}

// Cached sums up the tokens of prompts that engines said to have cached, those that the index had,
// and how far both were apart; answers is the number of prompts.
func (g *Gateway) Cached() (answers uint64, observed, predicted, apart float64) {
	for _, f := range g.fronts {
		answers += f.cached.Count()
		observed += f.cached.Sum()
		predicted += f.predicted.Sum()
		apart += float64(f.more.Load() + f.less.Load())
	}
	return answers, observed, predicted, apart
}

// Answers counts the requests that Envoy asked about and that were booked, and the pieces of their answers that it
// sent through the picker and back.
func (g *Gateway) Answers() (booked, pieces uint64) {
	f := g.fronts[ExtProc]
	return f.outcomes[GatewayBooked].Load(), f.pieces.Load()
}

// Front counts the requests of one front. Its methods neither block nor allocate.
type Front struct {
	Open   atomic.Int64 // requests under way
	Booked atomic.Int64 // of these, those with a booking

	outcomes          [gatewayOutcomes]atomic.Uint64
	prefills          [prefillSigns]atomic.Uint64
	rebooked          atomic.Uint64
	pieces            atomic.Uint64 // of answers
	failures          [tokenizerReasons][tokenizerActions]atomic.Uint64
	served            [servedEndpoints]atomic.Uint64
	picks, tokenizing *metrics.Histogram
	cached, predicted *metrics.Histogram
	lengths           atomic.Uint64 // needed but unknown
	more, less        atomic.Uint64 // tokens that engines had cached above and below the prediction
}

// Ended counts a request that got no engine.
func (f *Front) Ended(o GatewayOutcome) { f.outcomes[o].Add(1) }

// Placed counts a request that got an engine, booked, placed or unbooked, and how long that
// took; of is its trace.
func (f *Front) Placed(o GatewayOutcome, took time.Duration, of metrics.Example) {
	f.outcomes[o].Add(1)
	f.picks.ObserveExample(took.Seconds(), of)
}

// Tokenized counts a call of the tokenizer; of is its trace.
func (f *Front) Tokenized(took time.Duration, of metrics.Example) {
	f.tokenizing.ObserveExample(took.Seconds(), of)
}

// Passed counts the pieces of an answer that passed through the gateway.
func (f *Front) Passed(pieces uint64) { f.pieces.Add(pieces) }

// TokenizerFailed counts a request without tokens.
func (f *Front) TokenizerFailed(r TokenizerReason, a TokenizerAction) { f.failures[r][a].Add(1) }

// LengthUnknown counts a request whose prompt is not shortened as its engine does, since the
// length of the model is unknown.
func (f *Front) LengthUnknown() { f.lengths.Add(1) }

// PrefillCompleted counts a prefill.
func (f *Front) PrefillCompleted(by PrefillSign) { f.prefills[by].Add(1) }

// Rebooked counts a reservation that was booked again after its worker was back.
func (f *Front) Rebooked() { f.rebooked.Add(1) }

// Served counts an answer whose endpoint the gateway reported.
func (f *Front) Served(at ServedEndpoint) { f.served[at].Add(1) }

// CachedTokens counts the difference between the tokens that an engine had cached and the
// predicted number.
func (f *Front) CachedTokens(cached, predicted uint64) {
	f.cached.Observe(float64(cached))
	f.predicted.Observe(float64(predicted))
	if cached > predicted {
		f.more.Add(cached - predicted)
	} else {
		f.less.Add(predicted - cached)
	}
}

// Describe implements prometheus.Collector.
func (*Gateway) Describe(ch chan<- *prometheus.Desc) { Families.Describe(ch) }

// Collect implements prometheus.Collector.
func (g *Gateway) Collect(ch chan<- prometheus.Metric) {
	for v, f := range g.fronts {
		f.collect(ch, viaNames[v])
	}
}

func (f *Front) collect(ch chan<- prometheus.Metric, via string) {
	metrics.Send(ch, gatewayStreams, f.Open.Load(), via)
	metrics.Send(ch, gatewayBookings, f.Booked.Load(), via)
	for o, name := range gatewayOutcomeNames {
		metrics.Send(ch, gatewayRequests, f.outcomes[o].Load(), name, via)
	}
	metrics.SendHistogram(ch, gatewayPickSeconds, f.picks, via)
	metrics.SendHistogram(ch, gatewayTokenizing, f.tokenizing, via)
	for r, reason := range tokenizerReasonNames {
		for a, action := range tokenizerActionNames {
			metrics.Send(ch, gatewayTokenFailures, f.failures[r][a].Load(), reason, action, via)
		}
	}
	metrics.Send(ch, gatewayLengths, f.lengths.Load(), via)
	for by, name := range prefillSignNames {
		metrics.Send(ch, gatewayPrefills, f.prefills[by].Load(), name, via)
	}
	metrics.Send(ch, gatewayRebooked, f.rebooked.Load(), via)
	for at, name := range servedEndpointNames {
		metrics.Send(ch, gatewayServed, f.served[at].Load(), name, via)
	}
	metrics.Send(ch, gatewayPieces, f.pieces.Load(), via)
	metrics.SendHistogram(ch, gatewayCached, f.cached, via)
	metrics.SendHistogram(ch, gatewayPredicted, f.predicted, via)
	metrics.Send(ch, gatewayMispredicted, f.more.Load(), "more", via)
	metrics.Send(ch, gatewayMispredicted, f.less.Load(), "less", via)
}
