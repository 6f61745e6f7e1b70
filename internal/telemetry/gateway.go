package telemetry

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	gatewayFamilies families

	gatewayStreams       = gatewayFamilies.gauge("gateway_streams", "Requests under way through the gateway: open ext_proc streams.")
	gatewayBookings      = gatewayFamilies.gauge("gateway_bookings", "Of these, those that are booked on an engine.")
	gatewayRequests      = gatewayFamilies.counter("gateway_requests_total", "Requests through the gateway by what became of them: booked, placed (without a body, so not booked) or unbooked (by load, as the ledger had no room) on an engine, else why not.", "outcome")
	gatewayPickSeconds   = gatewayFamilies.histogram("gateway_pick_seconds", "Time from the end of a request to the answer that names its engine, tokenizer and wait queue included.")
	gatewayTokenizing    = gatewayFamilies.histogram("gateway_tokenizer_seconds", "Time that the tokenizer took for a request, failures included.")
	gatewayTokenFailures = gatewayFamilies.counter("gateway_tokenizer_failures_total", "Requests whose tokens are not known, by why and by what became of them.", "reason", "action")
	gatewayLengths       = gatewayFamilies.counter("gateway_model_length_unknown_total", "Requests whose prompt the engine shortens to the length of its model, while that is unknown: the prompt counts as it stands.")
	gatewayPrefills      = gatewayFamilies.counter("gateway_prefill_completed_total", "Prefills that were complete, by what told it.", "by")
	gatewayRebooked      = gatewayFamilies.counter("gateway_rebooked_total", "Reservations of running requests that ended with their worker and were booked again when it was back.")
	gatewayServed        = gatewayFamilies.counter("gateway_served_total", "Responses with which Envoy told the endpoint that served them: the chosen one, a fallback to which the booking was moved, or one that is no worker of the model.", "endpoint")
	gatewayCached        = gatewayFamilies.histogram("gateway_cached_tokens", "Tokens of a prompt that its engine had cached, as the usage in its answer says.")
	gatewayPredicted     = gatewayFamilies.histogram("gateway_cached_tokens_predicted", "Tokens of the same prompts that the index had for the chosen rank.")
	gatewayMispredicted  = gatewayFamilies.counter("gateway_cached_tokens_mispredicted_total", "By how many tokens engines had more or less cached than the index had for them, summed up.", "engine_had")
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
	gatewayOutcomes
)

var gatewayOutcomeNames = [gatewayOutcomes]string{
	"booked", "placed", "invalid", "unknown_model", "body_timeout", "too_large", "overloaded", "unavailable", "tokenizer", "failed", "gone", "protocol", "unbooked",
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
var tokenBounds = append([]float64{0}, doubling(16, 17)...)

// Gateway counts requests through the gateway, and collects the counts. Its methods neither
// block nor allocate.
type Gateway struct {
	// Open and Bookings are read at a scrape; Bookings may be nil.
	Open     atomic.Int64
	Bookings func() int

	outcomes          [gatewayOutcomes]atomic.Uint64
	prefills          [prefillSigns]atomic.Uint64
	rebooked          atomic.Uint64
	failures          [tokenizerReasons][tokenizerActions]atomic.Uint64
	served            [servedEndpoints]atomic.Uint64
	picks, tokenizing *Histogram
	cached, predicted *Histogram
	lengths           atomic.Uint64 // needed but unknown
	more, less        atomic.Uint64 // tokens that engines had cached above and below the prediction
}

// NewGateway returns counters at 0.
func NewGateway() *Gateway {
	return &Gateway{
		picks: NewHistogram(requestBounds), tokenizing: NewHistogram(requestBounds),
		cached: NewHistogram(tokenBounds), predicted: NewHistogram(tokenBounds),
	}
}

// Ended counts a request that got no engine.
func (g *Gateway) Ended(o GatewayOutcome) { g.outcomes[o].Add(1) }

// Placed counts a request that got an engine, booked, placed or unbooked, and how long that
// took.
func (g *Gateway) Placed(o GatewayOutcome, took time.Duration) {
	g.outcomes[o].Add(1)
	g.picks.Observe(took.Seconds())
}

// Tokenized counts a call of the tokenizer.
func (g *Gateway) Tokenized(took time.Duration) { g.tokenizing.Observe(took.Seconds()) }

// TokenizerFailed counts a request without tokens.
func (g *Gateway) TokenizerFailed(r TokenizerReason, a TokenizerAction) { g.failures[r][a].Add(1) }

// LengthUnknown counts a request whose prompt is not shortened as its engine does, since the
// length of the model is unknown.
func (g *Gateway) LengthUnknown() { g.lengths.Add(1) }

// PrefillCompleted counts a prefill.
func (g *Gateway) PrefillCompleted(by PrefillSign) { g.prefills[by].Add(1) }

// Rebooked counts a reservation that was booked again after its worker was back.
func (g *Gateway) Rebooked() { g.rebooked.Add(1) }

// Served counts an answer whose endpoint the gateway reported.
func (g *Gateway) Served(at ServedEndpoint) { g.served[at].Add(1) }

// CachedTokens counts the difference between the tokens that an engine had cached and the
// predicted number.
func (g *Gateway) CachedTokens(cached, predicted uint64) {
	g.cached.Observe(float64(cached))
	g.predicted.Observe(float64(predicted))
	if cached > predicted {
		g.more.Add(cached - predicted)
	} else {
		g.less.Add(predicted - cached)
	}
}

// Describe implements prometheus.Collector.
func (*Gateway) Describe(ch chan<- *prometheus.Desc) { gatewayFamilies.describe(ch) }

// Collect implements prometheus.Collector.
func (g *Gateway) Collect(ch chan<- prometheus.Metric) {
	send(ch, gatewayStreams, g.Open.Load())
	if g.Bookings != nil {
		send(ch, gatewayBookings, g.Bookings())
	}
	for o, name := range gatewayOutcomeNames {
		send(ch, gatewayRequests, g.outcomes[o].Load(), name)
	}
	sendHistogram(ch, gatewayPickSeconds, g.picks)
	sendHistogram(ch, gatewayTokenizing, g.tokenizing)
	for r, reason := range tokenizerReasonNames {
		for a, action := range tokenizerActionNames {
			send(ch, gatewayTokenFailures, g.failures[r][a].Load(), reason, action)
		}
	}
	send(ch, gatewayLengths, g.lengths.Load())
	for by, name := range prefillSignNames {
		send(ch, gatewayPrefills, g.prefills[by].Load(), name)
	}
	send(ch, gatewayRebooked, g.rebooked.Load())
	for at, name := range servedEndpointNames {
		send(ch, gatewayServed, g.served[at].Load(), name)
	}
	sendHistogram(ch, gatewayCached, g.cached)
	sendHistogram(ch, gatewayPredicted, g.predicted)
	send(ch, gatewayMispredicted, g.more.Load(), "more")
	send(ch, gatewayMispredicted, g.less.Load(), "less")
}
